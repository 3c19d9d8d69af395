//! The cluster against nodes that behave and nodes that do not, over real sockets. The nodes are
//! raw sockets that each test drives by hand, so that every byte is under its control.

mod fake;
mod fetch;
mod health;
mod lookup;
mod memory;
mod probe;
mod store;
