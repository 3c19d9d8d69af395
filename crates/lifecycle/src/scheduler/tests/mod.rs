//! The scheduler's machine: named cases, and random histories against a ledger of leases.

mod cases;
mod random;
mod saves;
mod scene;
