//! Links over real sockets: whole frames, hostile peers, deadlines. The peers that misbehave are
//! raw sockets; everything waits for a condition with a bound, never for time to pass.

mod endings;
mod frames;
mod support;
