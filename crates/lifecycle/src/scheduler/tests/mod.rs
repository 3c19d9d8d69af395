//! The scheduler's machine: named cases, and random histories against a ledger of leases.

mod bounds;
mod cases;
mod counts;
mod random;
mod saves;
mod scene;
