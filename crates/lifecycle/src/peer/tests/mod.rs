//! The machine of direct transfers: one side against a scripted process on the other.

mod by_ticket;
mod cells;
mod cells_read;
mod cells_write;
mod claims;
mod early;
mod fences;
mod forgotten;
mod messages;
mod orders;
mod scene;
mod sizes;
