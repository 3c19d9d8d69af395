//! Orders in, answers out: one line each, by the standard streams.
//!
//! Called by `main` for the hidden subcommand. `size BYTES` stores the working set in objects of
//! that size; `get N` and `put N` move all of it once with N in flight, and answer with the seconds
//! that it took; the session ends with its input. Contestants in Python speak the same words.

use std::io::{BufRead, Write};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::floors::{Copy, RawSocket};
use super::redis::Redis;
use super::tessera::Tessera;

/// The hidden subcommand.
pub(crate) const SUBCOMMAND: &str = "bench-contest";

/// A system that takes part.
pub(crate) trait Contestant {
    /// Forgets everything, and stores the working set in objects of `object_bytes`.
    fn size(&mut self, object_bytes: usize) -> Result<()>;

    /// Reads the working set, and compares a sample of it afterwards.
    fn get(&mut self, in_flight: usize) -> Result<Duration>;

    /// Writes the working set under new names, and compares a sample of it afterwards.
    fn put(&mut self, in_flight: usize) -> Result<Duration>;
}

/// Starts the system of that name, says so, and follows orders.
pub(crate) fn serve(name: &str) -> Result<()> {
    let mut contestant: Box<dyn Contestant> = match name {
        "tessera" => Box::new(Tessera::start()?),
        "redis" => Box::new(Redis::start()?),
        "socket" => Box::new(RawSocket::start(true)?),
        "socket-default" => Box::new(RawSocket::start(false)?),
        "copy" => Box::new(Copy::start()),
        _ => bail!("there is no contestant {name}"),
    };
    say("ready")?;
    for line in std::io::stdin().lock().lines() {
        let answer = follow(contestant.as_mut(), &line?)?;
        say(&answer)?;
    }
    Ok(())
}

fn follow(contestant: &mut dyn Contestant, order: &str) -> Result<String> {
    let (word, number) = order
        .split_once(' ')
        .context("an order is a word and a number")?;
    let number = number.parse().context("an order ends with a number")?;
    let time = match word {
        "size" => return contestant.size(number).map(|()| "ok".to_owned()),
        "get" => contestant.get(number)?,
        "put" => contestant.put(number)?,
        _ => bail!("no order is called {word}"),
    };
    Ok(time.as_secs_f64().to_string())
}

fn say(answer: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{answer}")?;
    Ok(out.flush()?)
}
