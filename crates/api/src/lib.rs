//! The HTTP API of a node: metrics, health, what is connected and subscribed, and the few things that can be
//! changed at run time. It runs on the control plane and asks the shards by messages.
//!
//! There is no authentication yet. So [`bind`] and [`serve`] refuse addresses beyond loopback unless told
//! otherwise, and requests that a web page could have forged are refused.

mod exposition;
mod gate;
mod landing;
mod node;
mod parameters;
mod problem;
mod process;
mod routes;
mod server;

pub use node::{Answer, Node, NotReady, Program};
pub use server::{Error, HttpConfig, bind, serve};
