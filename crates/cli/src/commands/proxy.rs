//! `tessera proxy`: runs one proxy before prefill and decode engines until it is told to stop.
//!
//! Prints `listening on ADDRESS` on standard output when clients can connect, and nothing else
//! there. The log, one JSON object a line, goes to standard error.

use std::io::Write;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::json;
use tessera_client::options::Options;
use tessera_client::peer::{mint_pass, ticket_key};
use tessera_proxy::{Limits, Mode, Passes, Proxy, ProxyConfig};
use tokio::runtime::Runtime;
use tokio::signal::unix::{SignalKind, signal};

use crate::args::{ProxyArguments, ProxyMode};

/// How long two engines may take to meet: both may have to wait until there is room for a request.
const PASS_VALID: Duration = Duration::from_secs(600);

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
            ProxyMode::Write => Mode::Write(passes(arguments.key_file.as_deref())?),
        },
        prefill: arguments.prefill,
        inboxes: arguments.inbox,
        decode: arguments.decode,
        limits,
    })
}

/// What writes passes under the engines' key.
fn passes(key_file: Option<&Path>) -> Result<Passes> {
    let mut options = Options::parse(&json!({}))?;
    if let Some(path) = key_file {
        options.peer_key_file = path.to_str().context("--key-file is no UTF-8")?.to_owned();
    }
    let key = ticket_key(&options)?;
    Ok(Passes::new(move |inbox| mint_pass(&key, inbox, PASS_VALID)))
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
