//! What both ends of a handover decide, without workers.

mod gives;
mod scene;
mod takes;
mod writes;
