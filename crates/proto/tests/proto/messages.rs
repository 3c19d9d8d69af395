//! All message types as one, so that a property is written once and holds for each of them.

use tessera_proto::{DecodeError, message};

macro_rules! messages {
    ($($name:ident,)*) => {
        /// A message of any type.
        #[derive(Clone, Debug, PartialEq)]
        pub(crate) enum Message { $($name(message::$name),)* }

        impl Message {
            /// The names of all message types.
            pub(crate) const NAMES: &[&str] = &[$(stringify!($name),)*];

            /// The name of this message's type.
            pub(crate) fn name(&self) -> &'static str {
                match self { $(Self::$name(_) => stringify!($name),)* }
            }

            /// The body of this message.
            pub(crate) fn encode(&self) -> Vec<u8> {
                let mut body = Vec::new();
                match self { $(Self::$name(message) => message.encode(&mut body),)* }
                body
            }

            /// Decodes `body` as a message of the type `name`.
            pub(crate) fn decode(name: &str, body: &[u8]) -> Result<Self, DecodeError> {
                match name {
                    $(stringify!($name) => message::$name::decode(body).map(Self::$name),)*
                    _ => panic!("no message type {name}"),
                }
            }
        }

        $(impl From<message::$name> for Message {
            fn from(message: message::$name) -> Self {
                Self::$name(message)
            }
        })*
    };
}

messages! {
    Hello, HelloAnswer, Put, PutAnswer, Acquire, AcquireAnswer, Get, GetAnswer, Release,
    ReleaseAnswer, Remove, RemoveAnswer, Stat, StatAnswer, Ping, Refused, PeerHello,
    PeerHelloAnswer, PeerPull, PeerPullAnswer, PeerPush, PeerPushAnswer, PeerTicket,
    PeerTicketAnswer, Drop, DropAnswer, Price, PriceAnswer,
}
