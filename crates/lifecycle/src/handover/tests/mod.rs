//! What both ends of a handover decide, without workers.

mod gives;
mod pairs;
mod samples;
mod scene;
mod takes;
mod writes;
