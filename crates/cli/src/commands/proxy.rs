//! `tessera proxy`: runs one proxy before prefill and decode engines until it is told to stop.
//!
//! Prints `listening on ADDRESS` on standard output when clients can connect, and nothing else
//! there. The log, one JSON object a line, goes to standard error.

use std::io::Write;

use anyhow::{Context, Result};
use tessera_proxy::{Limits, Mode, Proxy, ProxyConfig};
use tokio::runtime::Runtime;
use tokio::signal::unix::{SignalKind, signal};

use crate::args::{ProxyArguments, ProxyMode};

/// Runs the proxy; returns when it is over.
pub(crate) fn run(arguments: ProxyArguments) -> Result<()> {
    let config = config(arguments)?;
    Runtime::new()
        .context("starting the runtime")?
        .block_on(serve(config))
}

fn config(arguments: ProxyArguments) -> Result<ProxyConfig> {
    let limits = Limits {
        body_bytes: usize::try_from(arguments.max_body).context("--max-body")?,
        requests: arguments.max_requests.get(),
        answer: arguments.answer_timeout,
        silence: arguments.silence_timeout,
        ..Limits::default()
    };
    Ok(ProxyConfig {
        listen: arguments.listen,
        mode: match arguments.mode {
            ProxyMode::Read => Mode::Read,
        },
        prefill: arguments.prefill,
        decode: arguments.decode,
        limits,
    })
}

async fn serve(config: ProxyConfig) -> Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let proxy = tokio::select! {
        started = Proxy::start(config) => started?,
        _ = terminate.recv() => return Ok(()),
        _ = interrupt.recv() => return Ok(()),
    };
    // Who reads the line may be gone: the proxy serves all the same.
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "listening on {}", proxy.address()).and_then(|()| out.flush());
    drop(out);
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    tracing::info!("stopping: answers under way are finished");
    // Who is told twice does not wait.
    tokio::select! {
        () = proxy.stop() => {}
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    Ok(())
}
