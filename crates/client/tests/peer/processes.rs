//! Two processes with block memory of their own, bad weather between them, and a test that plays
//! the schedulers of both: thousands of transfers, each way, in both modes, some given up, some
//! never claimed, some whose source is late; processes are killed in between. Each process holds
//! itself that nobody touches what is free and that nothing wrong is reported (see `engine`).
//!
//! `TESSERA_PEER_SEEDS` gives more runs, `TESSERA_PEER_SEED` one of a seed.

use std::collections::{BTreeMap, VecDeque};
use std::env;
use std::process::Child;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpListener;
use tokio::net::tcp::OwnedWriteHalf;
use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::dice::Dice;
use crate::engine;
use crate::weather::Weather;

/// Longer than anything takes that is going to happen.
const PATIENCE: Duration = Duration::from_secs(60);
/// Transfers of one run in bad weather.
const DEALS: u64 = 1_000;
/// Transfers that are open at once, at most: a pool holds all of their blocks, four of each.
const OPEN: usize = 15;
/// Transfers whose source is overwritten after the offer.
const SPOILT: u64 = 20;
/// After each so many transfers one of the processes is killed.
const KILLS: u64 = 240;

/// A line that a process says, in which of its lives; `None` is its end.
pub(crate) type Said = (usize, u64, Option<String>);

/// One process, over all of its lives.
pub(crate) struct Process {
    which: usize,
    life: u64,
    child: Child,
    out: OwnedWriteHalf,
    pub(crate) incarnation: String,
    /// Where it listens, in all of its lives.
    pub(crate) address: String,
    seed: u64,
    layout: &'static str,
    said: mpsc::UnboundedSender<Said>,
}

impl Process {
    pub(crate) async fn start(
        which: usize,
        seed: u64,
        layout: &'static str,
        said: &mpsc::UnboundedSender<Said>,
    ) -> Self {
        let free = "127.0.0.1:0";
        let (child, out, incarnation, address) =
            Self::live(which, 0, free, seed, layout, said).await;
        Self {
            which,
            life: 0,
            child,
            out,
            incarnation,
            address,
            seed,
            layout,
            said: said.clone(),
        }
    }

    /// Starts the process, hears who it is, and lets what it says be heard.
    async fn live(
        which: usize,
        life: u64,
        listen: &str,
        seed: u64,
        layout: &str,
        said: &mpsc::UnboundedSender<Said>,
    ) -> (Child, OwnedWriteHalf, String, String) {
        let control = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let here = control.local_addr().unwrap().to_string();
        let child = engine::start(&here, listen, seed, layout);
        let (stream, _) = timeout(PATIENCE, control.accept()).await.unwrap().unwrap();
        let (lines, out) = stream.into_split();
        let mut lines = BufReader::new(lines).lines();
        let hello = lines.next_line().await.unwrap().expect("a first line");
        let words: Vec<&str> = hello.split(' ').collect();
        let (incarnation, address) = (words[1].to_owned(), words[2].to_owned());
        let said = said.clone();
        tokio::spawn(async move {
            loop {
                let line = lines.next_line().await.ok().flatten();
                let over = line.is_none();
                if said.send((which, life, line)).is_err() || over {
                    return;
                }
            }
        });
        (child, out, incarnation, address)
    }

    /// Kills it in the middle of whatever it does, and starts another one on its address.
    pub(crate) async fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        self.life += 1;
        let (which, life, seed, layout) = (self.which, self.life, self.seed, self.layout);
        let lived = Self::live(which, life, &self.address, seed, layout, &self.said);
        let (child, out, incarnation, address) = lived.await;
        assert_eq!(address, self.address);
        (self.child, self.out, self.incarnation) = (child, out, incarnation);
    }

    pub(crate) async fn say(&mut self, line: &str) {
        // A process that is gone is noticed where it is heard.
        let _ = self.out.write_all(format!("{line}\n").as_bytes()).await;
    }

    /// Waits for the end of a process that was told to quit, which finds all as it must be.
    pub(crate) fn ended(&mut self) {
        assert!(self.child.wait().unwrap().success());
    }

    /// Whether a line is of the life that it has now.
    pub(crate) const fn is_alive(&self, life: u64) -> bool {
        self.life == life
    }
}

/// What a test knows of one transfer.
#[derive(Clone, Debug)]
struct Deal {
    write: bool,
    /// Which process is the source.
    source: usize,
    shape: String,
    parts: u64,
    timeout_ms: u64,
    lease_ms: u64,
    how: &'static str,
    /// Halves that have not ended, by process.
    open: [bool; 2],
    /// The destination is still to be ordered, with the blocks of the source.
    waits: bool,
    cancelled: Option<usize>,
}

/// How the transfers of a run went.
#[derive(Debug, Default)]
struct Tally {
    well: [u64; 2],
    failed: [u64; 2],
    lost: u64,
}

struct Run {
    processes: [Process; 2],
    /// The way to each of them.
    ways: [Weather; 2],
    heard: mpsc::UnboundedReceiver<Said>,
    dice: Dice,
    deals: BTreeMap<u64, Deal>,
    next: u64,
    tally: Tally,
    rested: [bool; 2],
    ends: [Option<Vec<u64>>; 2],
}

impl Run {
    async fn new(seed: u64, layout: &'static str) -> Self {
        let (said, heard) = mpsc::unbounded_channel();
        let processes = [
            Process::start(0, seed, layout, &said).await,
            Process::start(1, seed, layout, &said).await,
        ];
        let ways = [
            Weather::start(&processes[0].address, seed).await,
            Weather::start(&processes[1].address, seed + 1_000).await,
        ];
        let mut run = Self {
            processes,
            ways,
            heard,
            dice: Dice::new(seed),
            deals: BTreeMap::new(),
            next: 1,
            tally: Tally::default(),
            rested: [false; 2],
            ends: [None, None],
        };
        run.meet().await;
        run
    }

    async fn meet(&mut self) {
        for which in 0..2 {
            let other = 1 - which;
            let (peer, way) = (
                &self.processes[other].incarnation,
                &self.ways[other].address,
            );
            let line = format!("meet {peer} {way}");
            self.processes[which].say(&line).await;
        }
    }

    /// Thinks of a transfer, and orders it at its source, or on both sides.
    async fn begin(&mut self, groups: usize, how: Option<&'static str>) {
        let dice = &mut self.dice;
        let parts = 1 + dice.below(2);
        let spots = (0..parts).flat_map(|part| (0..1 + dice.below(2)).map(move |_| part));
        let spots: Vec<usize> = spots.collect();
        let shape = spots
            .iter()
            .map(|part| format!("{part}:{}", dice.below(groups)));
        let shape = shape.collect::<Vec<_>>().join(",");
        let calm = how.is_some();
        let patience = calm.then_some(60_000);
        let write = dice.is_hit(5_000);
        let source = dice.below(2);
        let deal = Deal {
            write,
            source,
            shape,
            parts: parts as u64,
            timeout_ms: patience.unwrap_or(150 + dice.next() % 600),
            lease_ms: patience.unwrap_or(150 + dice.next() % 400),
            how: match how {
                Some(how) => how,
                None if write && dice.is_hit(4_000) => "late",
                None => "ready",
            },
            open: [false; 2],
            // A claim of a READ names the blocks of its source, and some sources are never claimed.
            waits: calm || !write && !dice.is_hit(300),
            cancelled: (!calm && dice.is_hit(400)).then(|| dice.below(2)),
        };
        let (number, both) = (self.next, !deal.waits && write);
        self.next += 1;
        self.deals.insert(number, deal);
        self.order(number, source, "-").await;
        if both {
            self.order(number, 1 - source, "-").await;
        }
    }

    async fn order(&mut self, number: u64, which: usize, remote: &str) {
        let deal = self.deals.get_mut(&number).unwrap();
        deal.open[which] = true;
        let peer = &self.processes[1 - which].incarnation;
        let (mode, side) = (
            if deal.write { "W" } else { "R" },
            if deal.source == which { "S" } else { "D" },
        );
        let (how, shape) = (if side == "S" { deal.how } else { "ready" }, &deal.shape);
        let (timeout_ms, lease_ms) = (deal.timeout_ms, deal.lease_ms);
        let remote = if deal.write { "-" } else { remote };
        let line = format!(
            "order {number} {mode} {side} {peer} {timeout_ms} {lease_ms} {how} {shape} {remote}"
        );
        self.processes[which].say(&line).await;
    }

    /// Waits for the next line of a living process and takes note of it.
    async fn hear(&mut self) {
        let heard = timeout(PATIENCE, self.heard.recv()).await;
        let Ok(Some((which, life, line))) = heard else {
            panic!("nothing is heard any more, and open are {:?}", self.deals);
        };
        if !self.processes[which].is_alive(life) {
            return;
        }
        let Some(line) = line else {
            assert!(self.ends[which].is_some(), "process {which} is gone");
            return;
        };
        let words: Vec<&str> = line.split(' ').collect();
        let number = words.get(1).and_then(|word| word.parse().ok());
        match (words[0], number) {
            ("ordered", Some(number)) => self.ordered(number, which, words[2]).await,
            ("over", Some(number)) => self.over(number, which, words[2]),
            ("rested", _) => self.rested[which] = true,
            ("end", _) => {
                let numbers = words[1..].iter().map(|word| word.parse().unwrap());
                self.ends[which] = Some(numbers.collect());
            }
            _ => panic!("{line}"),
        }
    }

    /// A process holds blocks for a transfer: the other half may follow, and what else was thought
    /// of.
    async fn ordered(&mut self, number: u64, which: usize, blocks: &str) {
        let Some(deal) = self.deals.get_mut(&number) else {
            return;
        };
        let is_source = deal.source == which;
        let (parts, late) = (deal.parts, deal.how == "late" && is_source);
        let follows = is_source && std::mem::take(&mut deal.waits);
        let cancelled = deal.cancelled.take_if(|at| *at == which);
        if follows {
            self.order(number, 1 - which, blocks).await;
        }
        let process = &mut self.processes[which];
        for part in (0..parts).filter(|_| late) {
            process.say(&format!("ready {number} {part}")).await;
        }
        if cancelled.is_some() {
            process.say(&format!("cancel {number}")).await;
        }
    }

    fn over(&mut self, number: u64, which: usize, how: &str) {
        let deal = self.deals.get_mut(&number).expect("an open transfer");
        assert!(
            std::mem::take(&mut deal.open[which]),
            "reported twice: {number}"
        );
        let mode = usize::from(deal.write);
        match how {
            "well" => self.tally.well[mode] += 1,
            "failed" => self.tally.failed[mode] += 1,
            _ => {}
        }
        if which == deal.source && deal.waits {
            // Whoever is not offered anything any more claims nothing.
            deal.waits = false;
        }
        self.forget(number);
    }

    fn forget(&mut self, number: u64) {
        let open = |deal: &Deal| deal.open[0] || deal.open[1] || deal.waits;
        if self.deals.get(&number).is_some_and(|deal| !open(deal)) {
            self.deals.remove(&number);
        }
    }

    /// Kills a process. What it had is gone with it; the other one has to end what it has.
    async fn kill(&mut self, which: usize) {
        self.processes[which].kill().await;
        let numbers: Vec<u64> = self.deals.keys().copied().collect();
        for number in numbers {
            let deal = self.deals.get_mut(&number).unwrap();
            self.tally.lost += u64::from(deal.open[which]);
            (deal.open[which], deal.waits) = (false, false);
            self.forget(number);
        }
        self.meet().await;
    }

    /// Begins `count` transfers, and waits until all of them are over.
    async fn deal(&mut self, count: u64, groups: usize, how: Option<&'static str>, kills: u64) {
        let until = self.next + count;
        let mut victims: VecDeque<usize> = [0, 1, 1, 0].into_iter().collect();
        while self.next < until || !self.deals.is_empty() {
            if self.next < until && self.deals.len() < OPEN {
                self.begin(groups, how).await;
                if kills > 0 && self.next.is_multiple_of(kills) {
                    let victim = victims.pop_front().unwrap_or(0);
                    self.kill(victim).await;
                }
                continue;
            }
            self.hear().await;
        }
    }

    /// Waits until neither process has anything open.
    async fn rest(&mut self) {
        self.rested = [false; 2];
        for process in &mut self.processes {
            process.say("rest").await;
        }
        while self.rested != [true; 2] {
            self.hear().await;
        }
    }

    /// Ends both processes, each of which looks at all that it has.
    async fn end(mut self) -> [Vec<u64>; 2] {
        self.rest().await;
        for process in &mut self.processes {
            process.say("quit").await;
        }
        while self.ends.iter().any(Option::is_none) {
            self.hear().await;
        }
        for process in &mut self.processes {
            process.ended();
        }
        self.ends.map(Option::unwrap)
    }
}

async fn run(seed: u64) {
    let (layout, groups) = match seed.is_multiple_of(2) {
        true => ("hybrid", 3),
        false => ("full", 1),
    };
    eprintln!("seed {seed}, {layout}");
    let mut run = Run::new(seed, layout).await;
    run.deal(DEALS, groups, None, KILLS).await;
    let faults: u64 = run.ways.iter().map(Weather::faults).sum();
    let Tally { well, failed, lost } = std::mem::take(&mut run.tally);
    eprintln!(
        "{faults} faults: {well:?} ended well, {failed:?} failed, {lost} lost with a process"
    );
    assert!(faults > 0 && well[0] > 0 && well[1] > 0 && failed[0] > 0 && failed[1] > 0);
    for way in &run.ways {
        way.calm();
    }
    run.rest().await;
    // Whoever overwrites what it has offered is found out, by the other side, each time.
    run.deal(SPOILT, groups, Some("spoilt"), 0).await;
    let Tally { well, failed, .. } = std::mem::take(&mut run.tally);
    assert_eq!((well, failed[0] + failed[1]), ([0, 0], SPOILT));
    // After all that, everything succeeds.
    run.deal(60, groups, Some("ready"), 0).await;
    let Tally { well, failed, .. } = std::mem::take(&mut run.tally);
    assert_eq!((well[0] + well[1], failed), (60, [0, 0]));
    let ends = run.end().await;
    let damaged: u64 = ends.iter().map(|counted| counted[3]).sum();
    assert!(damaged >= SPOILT, "{damaged} found out by their checksum");
    eprintln!("strangers, stale processes, stale connections, damaged, fences, retries: {ends:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn two_processes_in_bad_weather_report_nothing_wrong_and_touch_nothing_that_is_free() {
    let number = |name| env::var(name).ok().map(|text| text.parse::<u64>().unwrap());
    if let Some(seed) = number("TESSERA_PEER_SEED") {
        return run(seed).await;
    }
    for seed in 0..number("TESSERA_PEER_SEEDS").unwrap_or(2) {
        run(seed).await;
    }
}
