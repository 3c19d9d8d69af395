//! A node in this process and real sockets: what each message does, what hostile clients cannot do,
//! and how connections, leases and nodes end.

mod disk;
mod drops;
mod hostile;
mod lifetime;
mod messages;
mod place;
mod prices;
mod probe;
mod sending;
mod support;
mod tenants;
