//! What the bytes of Tessera must be: golden vectors, and properties of every codec and the ring.

mod codecs;
mod golden;
mod identity;
mod limits;
mod messages;
mod peer;
mod ring;
mod strategies;
mod ticket;
mod wire;
