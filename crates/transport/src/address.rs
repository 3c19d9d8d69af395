//! Where a node listens. Parsed from configuration by the client, the node and the command line;
//! whoever prints an address gets back what was parsed.

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::str::FromStr;

/// A TCP `host:port`, or the path of a unix socket written as `unix:/path`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Address {
    /// `host:port`; an IPv6 host stands in brackets.
    Tcp(String),
    /// The path of a unix stream socket.
    Unix(PathBuf),
}

/// Why a text is not an address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// `unix:` without an absolute path.
    #[error("{0:?} needs an absolute path after `unix:`, as in `unix:/run/tessera/node.sock`")]
    UnixPath(String),
    /// Not `host:port`.
    #[error("{0:?} is not `host:port`, as in `127.0.0.1:7421`, nor `unix:/path`")]
    HostPort(String),
}

impl Address {
    /// Whether only this machine can reach the address. A host name other than `localhost` is not
    /// resolved: it counts as reachable from elsewhere.
    pub fn is_loopback(&self) -> bool {
        match self {
            Self::Unix(_) => true,
            Self::Tcp(host_port) => {
                let host = host_of(host_port);
                host.eq_ignore_ascii_case("localhost")
                    || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
            }
        }
    }
}

/// The host of `host:port` without brackets.
fn host_of(host_port: &str) -> &str {
    let host = host_port
        .rsplit_once(':')
        .map_or(host_port, |(host, _)| host);
    host.strip_prefix('[')
        .and_then(|rest| rest.strip_suffix(']'))
        .unwrap_or(host)
}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        if let Some(path) = text.strip_prefix("unix:") {
            let path = PathBuf::from(path);
            if !path.is_absolute() {
                return Err(AddressError::UnixPath(text.to_owned()));
            }
            return Ok(Self::Unix(path));
        }
        let refused = || AddressError::HostPort(text.to_owned());
        let (host, port) = text.rsplit_once(':').ok_or_else(refused)?;
        let bare = host_of(text);
        let bracketed = host.len() != bare.len();
        if bare.is_empty() || port.parse::<u16>().is_err() || (bare.contains(':') && !bracketed) {
            return Err(refused());
        }
        Ok(Self::Tcp(text.to_owned()))
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(host_port) => f.write_str(host_port),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_prints_as_it_was_written() {
        for text in [
            "127.0.0.1:7421",
            "[::1]:7421",
            "cache-7.example:1",
            "unix:/run/t/node.sock",
        ] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn a_text_without_port_or_path_is_refused() {
        for text in [
            "",
            "host",
            "host:",
            ":7421",
            "::1",
            "::1:7421",
            "host:70000",
            "unix:rel",
        ] {
            assert!(text.parse::<Address>().is_err(), "{text:?} was accepted");
        }
    }

    #[test]
    fn only_this_machine_reaches_a_loopback_address() {
        for (text, loopback) in [
            ("127.0.0.1:1", true),
            ("[::1]:1", true),
            ("localhost:1", true),
            ("unix:/a", true),
            ("0.0.0.0:1", false),
            ("[::]:1", false),
            ("10.0.0.1:1", false),
            ("example:1", false),
        ] {
            assert_eq!(
                text.parse::<Address>().unwrap().is_loopback(),
                loopback,
                "{text}"
            );
        }
    }
}
