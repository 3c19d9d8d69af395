//! Direct transfers between workers over real sockets and real memory: what moves, what is refused,
//! and what happens when connections, processes and bytes fail.

mod devices;
mod dice;
mod engine;
mod faults;
mod handshake;
mod hostile;
mod moves;
mod processes;
mod proxy;
mod raw;
mod relay;
mod sources;
mod stages;
mod weather;
mod worker;
