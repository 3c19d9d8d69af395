//! Redis, by a client that is not the bottleneck: one socket, blocking, requests ahead of their
//! answers, bytes straight from and into the arenas, no copy and no allocation on the way.
//!
//! Called by the session. Redis serves one request at a time whatever the number of connections,
//! so that more of them only add wake-ups. Persistence is off; the names of a pass are removed
//! before the next, outside of what is timed.

use std::io::{BufRead, BufReader, IoSlice, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::payload::Memory;
use super::session::Contestant;
use crate::bench::floor::tune;

const PATIENCE: Duration = Duration::from_secs(20);
const POLL: Duration = Duration::from_millis(20);
/// Names of what is read, and of what the last pass has written.
const READ: &str = "read";
const WRITTEN: &str = "written";

/// A server, the one connection to it, and the memory on this side.
pub(crate) struct Redis {
    server: Child,
    stream: BufReader<TcpStream>,
    memory: Memory,
}

impl Redis {
    pub(crate) fn start() -> Result<Self> {
        // The port is free for long enough: nothing else of this namespace takes one.
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?
            .local_addr()?
            .port();
        let mut server = Command::new("redis-server")
            .args(["--bind", "127.0.0.1", "--port", &port.to_string()])
            .args(["--save", "", "--appendonly", "no", "--loglevel", "warning"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .context("redis-server is not installed (apt-get install redis-server)")?;
        let until = Instant::now() + PATIENCE;
        let stream = loop {
            match TcpStream::connect((Ipv4Addr::LOCALHOST, port)) {
                Ok(stream) => break stream,
                Err(error) if Instant::now() > until => {
                    let _ = server.kill();
                    return Err(error).context("redis-server does not listen");
                }
                Err(_) => std::thread::sleep(POLL),
            }
        };
        tune(&stream);
        Ok(Self {
            server,
            stream: BufReader::with_capacity(4096, stream),
            memory: Memory::allocate(),
        })
    }

    /// Keeps `in_flight` requests ahead of their answers.
    fn pass(
        &mut self,
        in_flight: usize,
        ask: impl Fn(&mut Self, usize) -> Result<()>,
        answer: impl Fn(&mut Self, usize) -> Result<()>,
    ) -> Result<Duration> {
        let count = self.memory.count();
        let begun = Instant::now();
        let mut asked = 0;
        for answered in 0..count {
            while asked < count.min(answered + in_flight) {
                ask(self, asked)?;
                asked += 1;
            }
            answer(self, answered)?;
        }
        Ok(begun.elapsed())
    }

    fn ask_get(&mut self, name: &str, number: usize) -> Result<()> {
        let key = key(name, number);
        let request = format!("*2\r\n$3\r\nGET\r\n${}\r\n{key}\r\n", key.len());
        Ok(self.stream.get_mut().write_all(request.as_bytes())?)
    }

    fn ask_set(&mut self, name: &str, number: usize) -> Result<()> {
        let key = key(name, number);
        let place = self.memory.place(number);
        let (length, bytes) = (place.len(), &self.memory.source[place]);
        let head = format!(
            "*3\r\n$3\r\nSET\r\n${}\r\n{key}\r\n${length}\r\n",
            key.len()
        );
        let mut parts = [head.as_bytes(), bytes, b"\r\n"].map(IoSlice::new);
        let mut parts = &mut parts[..];
        while !parts.is_empty() {
            let written = self.stream.get_mut().write_vectored(parts)?;
            ensure!(written > 0, "redis closed the connection");
            IoSlice::advance_slices(&mut parts, written);
        }
        Ok(())
    }

    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        self.stream.read_line(&mut line)?;
        Ok(line.trim_end().to_owned())
    }

    fn answer_get(&mut self, number: usize) -> Result<()> {
        let line = self.line()?;
        let place = self.memory.place(number);
        ensure!(
            line == format!("${}", place.len()),
            "GET was answered with {line}"
        );
        self.stream
            .read_exact(&mut self.memory.destination[place])?;
        let mut end = [0; 2];
        Ok(self.stream.read_exact(&mut end)?)
    }

    fn answer_set(&mut self) -> Result<()> {
        match self.line()?.as_str() {
            "+OK" => Ok(()),
            line => bail!("SET was answered with {line}"),
        }
    }

    /// A request without arguments that is answered with OK.
    fn command(&mut self, words: &[&str]) -> Result<()> {
        let mut request = format!("*{}\r\n", words.len());
        for word in words {
            request.push_str(&format!("${}\r\n{word}\r\n", word.len()));
        }
        self.stream.get_mut().write_all(request.as_bytes())?;
        self.answer_set()
    }

    fn store(&mut self, name: &'static str, in_flight: usize) -> Result<Duration> {
        self.pass(
            in_flight,
            |redis, number| redis.ask_set(name, number),
            |redis, _| redis.answer_set(),
        )
    }

    fn load(&mut self, name: &'static str, in_flight: usize) -> Result<Duration> {
        self.memory.forget();
        let time = self.pass(
            in_flight,
            |redis, number| redis.ask_get(name, number),
            Self::answer_get,
        )?;
        self.memory.check()?;
        Ok(time)
    }
}

fn key(name: &str, number: usize) -> String {
    format!("{name}-{number}")
}

impl Contestant for Redis {
    fn size(&mut self, object_bytes: usize) -> Result<()> {
        self.memory.object_bytes = object_bytes;
        self.command(&["FLUSHALL", "SYNC"])?;
        self.store(READ, 1)?;
        Ok(())
    }

    fn get(&mut self, in_flight: usize) -> Result<Duration> {
        self.load(READ, in_flight)
    }

    fn put(&mut self, in_flight: usize) -> Result<Duration> {
        self.command(&["FLUSHALL", "SYNC"])?;
        let time = self.store(WRITTEN, in_flight)?;
        self.load(WRITTEN, 1)?;
        Ok(time)
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        // A server that is gone already needs no end.
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}
