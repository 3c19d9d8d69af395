//! A process that is killed at each stage of a transfer, and another one on its address: the one
//! that lives ends what it has, and what the dead one said is refused and counted, also when it
//! arrives only now.

use std::time::Duration;

use tessera_transport::Address;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::processes::{Process, Said};
use crate::proxy::{At, Fault, Plan, Proxy, Way};
use crate::worker::until;

const PATIENCE: Duration = Duration::from_secs(60);
const SOURCE: usize = 0;
const DESTINATION: usize = 1;

/// Two processes, the second of which dials the first through a proxy.
struct Pair {
    processes: [Process; 2],
    heard: mpsc::UnboundedReceiver<Said>,
}

impl Pair {
    async fn new() -> Self {
        let (said, heard) = mpsc::unbounded_channel();
        let processes = [
            Process::start(SOURCE, 7, "hybrid", &said).await,
            Process::start(DESTINATION, 7, "hybrid", &said).await,
        ];
        Self { processes, heard }
    }

    /// What `which` says next that begins like this; what it said in an earlier life is nothing.
    async fn hears(&mut self, which: usize, beginning: &str) -> String {
        loop {
            let heard = timeout(PATIENCE, self.heard.recv()).await;
            let Ok(Some((from, life, line))) = heard else {
                panic!("{which} never says {beginning:?}");
            };
            if from != which || !self.processes[from].is_alive(life) {
                continue;
            }
            let line = line.unwrap_or_else(|| panic!("process {from} is gone"));
            if line.starts_with(beginning) {
                return line;
            }
        }
    }

    /// Orders a transfer of two parts at its source, and then at its destination.
    async fn begin(&mut self, number: u64, mode: &str, millis: u64) {
        let mut blocks = "-".to_owned();
        for (which, side) in [(SOURCE, "S"), (DESTINATION, "D")] {
            let peer = &self.processes[1 - which].incarnation;
            let shape = "0:0,0:0,0:0,0:1,1:2,1:2";
            let line = format!(
                "order {number} {mode} {side} {peer} {millis} {millis} ready {shape} {blocks}"
            );
            self.processes[which].say(&line).await;
            let ordered = self.hears(which, "ordered").await;
            if mode == "R" {
                ordered.split(' ').nth(2).unwrap().clone_into(&mut blocks);
            }
        }
    }

    async fn meet(&mut self, proxy: &Proxy) {
        let line = format!(
            "meet {} {}",
            self.processes[SOURCE].incarnation, proxy.address
        );
        self.processes[DESTINATION].say(&line).await;
    }

    /// Everything is over and as it must be. What each side has counted.
    async fn end(mut self) -> [Vec<u64>; 2] {
        for which in [SOURCE, DESTINATION] {
            self.processes[which].say("rest").await;
            self.hears(which, "rested").await;
        }
        let mut counted = [Vec::new(), Vec::new()];
        for (which, numbers) in counted.iter_mut().enumerate() {
            self.processes[which].say("quit").await;
            let end = self.hears(which, "end").await;
            numbers.extend(
                end.split(' ')
                    .skip(1)
                    .map(|word| word.parse::<u64>().unwrap()),
            );
            self.processes[which].ended();
        }
        counted
    }
}

/// Says again all that the side that dialled has said on its first connection.
async fn replay(address: &str, bytes: &[u8]) {
    let mut stream = TcpStream::connect(address).await.unwrap();
    // It may be refused before its end.
    let _ = stream.write_all(bytes).await;
    let _ = stream.shutdown().await;
    let _ = stream.read_to_end(&mut Vec::new()).await;
}

async fn killed(mode: &'static str, victim: usize, plan: Plan) {
    let what = format!("{mode} {victim} {plan:?}");
    let mut pair = Pair::new().await;
    let upstream = Address::Tcp(pair.processes[SOURCE].address.clone());
    let proxy = Proxy::start(&upstream, Some(plan)).await;
    pair.meet(&proxy).await;
    pair.begin(1, mode, 1_000).await;
    until("the stage", || proxy.has_happened()).await;
    let dead = pair.processes[DESTINATION].incarnation.clone();
    pair.processes[victim].kill().await;
    proxy.release();
    pair.hears(1 - victim, "over 1").await;
    if victim == DESTINATION {
        // The source keeps its last words until it is told of the death: by who listens there now.
        let line = format!("meet {dead} {}", pair.processes[DESTINATION].address);
        pair.processes[SOURCE].say(&line).await;
    }
    let (frames, bytes) = proxy.recorded();
    replay(&pair.processes[SOURCE].address, &bytes).await;
    pair.meet(&proxy).await;
    pair.begin(2, mode, 60_000).await;
    pair.hears(DESTINATION, "over 2 well").await;
    let counted = pair.end().await;
    let [strangers, processes, connections, ..] = counted[SOURCE][..] else {
        panic!("{counted:?}");
    };
    match victim {
        SOURCE => assert!(strangers > 0, "{what} {counted:?}"),
        // Its HELLO is its own; what follows is of a connection that is over.
        _ => assert!(
            frames < 2 || processes + connections > 0,
            "{what} {counted:?}"
        ),
    }
}

/// The first frames each way: HELLO and its answer, offer or claim, claim or grant, the data, the
/// last words.
fn stages(mode: &str) -> Vec<Plan> {
    let frames = match mode {
        "R" => [4, 4],
        _ => [3, 5],
    };
    let ways = [Way::There, Way::Back].into_iter().zip(frames);
    let plans = ways.flat_map(|(way, frames)| {
        (0..frames).map(move |number| Plan {
            way,
            at: At::Frame(number),
            fault: match number % 2 {
                0 => Fault::Stall,
                _ => Fault::StallInside,
            },
        })
    });
    plans.collect()
}

async fn killed_at_each_stage(victim: usize) {
    for mode in ["R", "W"] {
        for some in stages(mode).chunks(4) {
            let run = |plan: &Plan| tokio::spawn(killed(mode, victim, *plan));
            let runs: Vec<_> = some.iter().map(run).collect();
            for run in runs {
                run.await.unwrap();
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_source_process_killed_at_each_stage_speaks_to_nobody_after_its_death() {
    killed_at_each_stage(SOURCE).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_destination_process_killed_at_each_stage_speaks_to_nobody_after_its_death() {
    killed_at_each_stage(DESTINATION).await;
}
