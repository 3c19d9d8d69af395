//! The whole house over real sockets: a node in a process of its own, and clients as an engine has
//! them. Nothing that happens to the node is an error to a client, and no byte is ever wrong.

mod cancel;
mod crash;
mod damage;
mod deadline;
mod full;
mod gone;
mod integrity;
mod isolation;
mod node_process;
mod restart;
mod saves;
mod streams;
mod tile;
