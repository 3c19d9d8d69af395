//! The proxy between real sockets: engines that do what a test says, and clients that may leave.

mod dispatch;
mod ends;
mod engine;
mod limits;
mod parallel;
mod world;
