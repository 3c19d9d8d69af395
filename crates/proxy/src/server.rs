//! The proxy as a server: takes connections, watches engines, stops without cutting answers.
//!
//! Called by the binary, which keeps the [`RunningProxy`]. Connections, the time a client takes for
//! its headers, and the time that a stop takes are bounded.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use thiserror::Error;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{sleep, timeout};
use tracing::{info, warn};

use crate::config::{Limits, Mode, ProxyConfig};
use crate::dispatch::Dispatch;
use crate::health;
use crate::legs::Legs;
use crate::pool::{Pool, Role};
use crate::routes::{Shared, routes};

/// After an error of accept, which is as a rule that files have run out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Why a proxy does not start.
#[derive(Debug, Error)]
pub enum StartError {
    /// The address cannot be listened on.
    #[error("cannot listen on {address}: {error}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The system's reason.
        error: io::Error,
    },
    /// A pool is empty.
    #[error("no {0} engine is given: name one at least")]
    NoEngine(&'static str),
    /// Prefill cannot write where nobody knows how decode finds it.
    #[error(
        "{engines} prefill engines and {inboxes} inboxes: in mode write give --inbox HOST:PORT \
         once for each --prefill, in their order; it is the engine's option peer_inbox"
    )]
    Inboxes {
        /// Prefill engines that are given.
        engines: usize,
        /// Inboxes that are.
        inboxes: usize,
    },
    /// Inboxes are of no use.
    #[error("inboxes are given, and nothing is written: give --mode write, or no --inbox")]
    NothingWritten,
}

/// The start of a proxy.
#[derive(Debug)]
pub struct Proxy;

/// A proxy that runs until it is told to stop, or is dropped.
#[derive(Debug)]
pub struct RunningProxy {
    address: SocketAddr,
    stop: watch::Sender<bool>,
    accepting: JoinHandle<()>,
    _watching: JoinSet<()>,
}

impl Proxy {
    /// Listens, and returns when every engine has been asked once after its health: those that do
    /// not answer may come later. Must be called within a runtime.
    pub async fn start(config: ProxyConfig) -> Result<RunningProxy, StartError> {
        let address = config.listen;
        let listen = |error| StartError::Listen { address, error };
        if config.prefill.is_empty() {
            return Err(StartError::NoEngine("prefill"));
        }
        if config.decode.is_empty() {
            return Err(StartError::NoEngine("decode"));
        }
        let (engines, inboxes) = (config.prefill.len(), config.inboxes.len());
        match config.mode {
            Mode::Write(_) if engines != inboxes => {
                return Err(StartError::Inboxes { engines, inboxes });
            }
            Mode::Read if inboxes > 0 => return Err(StartError::NothingWritten),
            Mode::Read | Mode::Write(_) => {}
        }
        let listener = TcpListener::bind(address).await.map_err(listen)?;
        let address = listener.local_addr().map_err(listen)?;
        let limits = config.limits;
        let legs = Arc::new(Legs::new(&limits));
        let dispatch = Dispatch {
            mode: config.mode,
            prefill: Pool::new(Role::Prefill, &config.prefill, &config.inboxes),
            decode: Pool::new(Role::Decode, &config.decode, &[]),
            legs,
            limits: limits.clone(),
        };
        let watching = watch_engines(&dispatch).await;
        let shared = Arc::new(Shared {
            dispatch,
            metrics: Arc::default(),
            room: Arc::new(Semaphore::new(limits.requests)),
        });
        let (stop, stopped) = watch::channel(false);
        let accepting = accept(listener, routes(shared), limits, stopped);
        Ok(RunningProxy {
            address,
            stop,
            accepting: tokio::spawn(accepting),
            _watching: watching,
        })
    }
}

impl RunningProxy {
    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Takes no more connections; returns when the answers under way are over, or their time is.
    pub async fn stop(self) {
        let _ = self.stop.send(true);
        if let Err(error) = self.accepting.await {
            warn!(%error, "the proxy ended with an error");
        }
    }
}

/// Asks all engines once, and then for as long as the answer lives.
async fn watch_engines(dispatch: &Dispatch) -> JoinSet<()> {
    let pools = [&dispatch.prefill, &dispatch.decode];
    let mut watching = JoinSet::new();
    let mut first = JoinSet::new();
    for pool in pools {
        for engine in pool.engines() {
            let (legs, engine, role) = (Arc::clone(&dispatch.legs), Arc::clone(engine), pool.role);
            let limits = dispatch.limits.clone();
            let asking = (Arc::clone(&legs), Arc::clone(&engine), role, limits.clone());
            first.spawn(health::ask_once(asking.0, asking.1, asking.2, asking.3));
            watching.spawn(health::watch(legs, engine, role, limits));
        }
    }
    first.join_all().await;
    for pool in pools {
        let (healthy, engines) = (pool.healthy(), pool.engines().len());
        info!(role = %pool.role, healthy, engines, "engines");
    }
    watching
}

async fn accept(
    listener: TcpListener,
    routes: Router,
    limits: Limits,
    mut stopped: watch::Receiver<bool>,
) {
    let room = Arc::new(Semaphore::new(limits.connections));
    let mut open = JoinSet::new();
    loop {
        let next = async {
            let place = Arc::clone(&room).acquire_owned().await;
            (place, listener.accept().await)
        };
        let (place, accepted) = tokio::select! {
            next = next => next,
            _ = stopped.changed() => break,
        };
        match accepted {
            Ok((socket, _)) => {
                let serving = serve(socket, routes.clone(), limits.receive, stopped.clone());
                open.spawn(async move {
                    serving.await;
                    drop(place);
                });
            }
            Err(error) => {
                warn!(%error, "cannot accept a connection");
                sleep(ACCEPT_PAUSE).await;
            }
        }
        while open.try_join_next().is_some() {}
    }
    drop(listener);
    if timeout(limits.drain, async {
        while open.join_next().await.is_some() {}
    })
    .await
    .is_err()
    {
        warn!(
            connections = open.len(),
            "answers that did not end in time are cut"
        );
    }
}

/// One connection, until either side ends it. Answers under way are finished when it is to stop.
async fn serve(
    socket: TcpStream,
    routes: Router,
    receive: Duration,
    mut stopped: watch::Receiver<bool>,
) {
    // Tokens are small, and nobody waits for another one before it is sent.
    let _ = socket.set_nodelay(true);
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(receive)
        .serve_connection(TokioIo::new(socket), TowerToHyperService::new(routes));
    let mut connection = std::pin::pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        _ = stopped.changed() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection ended with an error");
    }
}
