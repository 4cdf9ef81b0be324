//! Calls over TCP with mutual TLS.
//!
//! A caller keeps a few *channels* to each server ([`Link`]); a channel is a connection, and the next one when that breaks. Calls on a channel have
//! numbers. A call whose connection broke is sent again under its number, and the server, which remembers channels, carries it out once and
//! answers on whatever connection the channel has then. That is the one retry layer: nobody above repeats a call.
//!
//! Nothing of a stranger gets past TLS; a certificate says which node it is and what it may be ([`TlsIdentity`]).

mod caller;
mod channel;
mod error;
pub mod frame;
pub mod hello;
mod server;
mod stream;
mod tls;

pub use caller::{Addresses, Answer, Call, Caller, Link, MaySend, Watch};
pub use error::NetError;
pub use frame::Service;
pub use server::{Admit, Answers, Endpoint, Epochs, Listener, Peer, Replier, Server, ServerConfig};
pub use tls::{KnowsToken, TlsIdentity, Wanted, for_browsers};
