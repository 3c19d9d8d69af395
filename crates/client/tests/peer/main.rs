//! Direct transfers between workers over real sockets and real memory: what moves, what is refused,
//! and what happens when connections, processes and bytes fail.

mod devices;
mod faults;
mod handshake;
mod hostile;
mod moves;
mod proxy;
mod raw;
mod sources;
mod worker;
