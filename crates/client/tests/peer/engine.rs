//! A worker in a process of its own, for the tests of two: it has block memory and a pool of
//! blocks, and does what a test tells it by lines over a socket.
//!
//! The invariants, any breach of which is a panic that ends the process: a free block holds the
//! canary of freed memory, from its return to the pool until it is taken out again; what is
//! reported as received is what its source was filled with; a source's blocks are as they were
//! filled until they are reported.

use std::collections::BTreeMap;
use std::env;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tessera_client::HealthConfig;
use tessera_client::peer::{
    BlockRef, Generation, Mode, PartId, PartOrder, PeerBounds, PeerTimes, Side, TransferId,
    TransferOrder,
};
use tessera_client::{Address, Incarnation};
use tessera_lifecycle::RequestKey;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::net::tcp::OwnedWriteHalf;

use crate::dice::Dice;
use crate::worker::{BLOCKS, CANARY, Worker, options, until};

/// What a process is told by its environment: where to call back, where to listen for peers, the
/// seed of all content, the layout.
const WISH: &str = "TESSERA_PEER_ENGINE";
/// Each so often free memory is looked at.
const PATROL: Duration = Duration::from_millis(100);

/// Starts the process.
pub(crate) fn start(control: &str, listen: &str, seed: u64, layout: &str) -> Child {
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["--exact", "engine::engine", "--ignored", "--nocapture"]);
    command.env(WISH, format!("{control} {listen} {seed} {layout}"));
    let quiet = command.stdin(Stdio::null()).stdout(Stdio::null());
    quiet.spawn().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "the process of the tests that need two"]
async fn engine() {
    let Ok(wish) = env::var(WISH) else {
        return;
    };
    let wish: Vec<&str> = wish.split(' ').collect();
    let [control, listen, seed, layout] = wish[..] else {
        panic!("{WISH}={wish:?}");
    };
    let worker = listening(layout, listen).await;
    worker.fill(CANARY);
    let (lines, out) = TcpStream::connect(control).await.unwrap().into_split();
    let mut lines = BufReader::new(lines).lines();
    let mut engine = Engine::new(worker, seed.parse().unwrap(), out);
    engine.introduce_itself().await;
    let mut patrolled = Instant::now();
    loop {
        tokio::select! {
            line = lines.next_line() => match line {
                Ok(Some(line)) if line == "quit" => return engine.end().await,
                Ok(Some(line)) => engine.obey(&line).await,
                _ => return,
            },
            () = tokio::time::sleep(Duration::from_millis(1)) => {}
        }
        engine.collect().await;
        if patrolled.elapsed() > PATROL {
            engine.patrol();
            patrolled = Instant::now();
        }
    }
}

/// A worker at an address that another life may just have left.
async fn listening(layout: &str, listen: &str) -> Worker {
    let mut options = options(layout, 0);
    options.listen = Address::Tcp(listen.into());
    options.times = PeerTimes {
        ping_ms: 20,
        drain_ms: 30,
        abort_ms: 30,
        fence_ms: 30,
        stop_ms: 60_000,
    };
    options.bounds = PeerBounds {
        dial_limit: Duration::from_secs(1),
        pauses: HealthConfig {
            backoff_min: Duration::from_millis(5),
            backoff_max: Duration::from_millis(100),
            ..HealthConfig::default()
        },
        ..options.bounds
    };
    Worker::start(&options, None).await
}

/// A transfer that this side has ordered.
struct Deal {
    side: Side,
    blocks: Vec<(u16, BlockRef)>,
    /// Its bytes were changed after the offer.
    spoilt: bool,
    /// Its source was not filled when it was ordered.
    late: bool,
}

struct Engine {
    worker: Worker,
    seed: u64,
    dice: Dice,
    /// Free blocks of each group.
    pool: Vec<Vec<u32>>,
    generations: BTreeMap<(u16, u32), u64>,
    deals: BTreeMap<u64, Deal>,
    resting: bool,
    out: OwnedWriteHalf,
}

impl Engine {
    fn new(worker: Worker, seed: u64, out: OwnedWriteHalf) -> Self {
        let pool = vec![(1..BLOCKS).collect(); worker.groups()];
        let own = worker.driver.incarnation().0.to_le_bytes();
        Self {
            dice: Dice::new(u64::from_le_bytes(*own.first_chunk().unwrap())),
            pool,
            worker,
            seed,
            generations: BTreeMap::new(),
            deals: BTreeMap::new(),
            resting: false,
            out,
        }
    }

    async fn say(&mut self, line: &str) {
        // Whoever does not listen any more is gone, and ends this process by the end of its lines.
        let _ = self.out.write_all(format!("{line}\n").as_bytes()).await;
    }

    async fn introduce_itself(&mut self) {
        let driver = &self.worker.driver;
        let hello = format!("hello {:x} {}", driver.incarnation().0, driver.address());
        self.say(&hello).await;
    }

    async fn obey(&mut self, line: &str) {
        let words: Vec<&str> = line.split(' ').collect();
        let number = |at: usize| words[at].parse::<u64>().unwrap();
        match words[0] {
            "meet" => {
                let address = Address::Tcp(words[2].into());
                self.worker
                    .driver
                    .introduce(incarnation(words[1]), &address);
            }
            "order" => self.order(&words[1..]).await,
            "ready" => self.ready(number(1), u16::try_from(number(2)).unwrap()),
            "cancel" => self.worker.driver.cancel(transfer(number(1))),
            "rest" => self.resting = true,
            other => panic!("{other}"),
        }
    }

    /// `number mode side peer timeout_ms lease_ms how shape remote`, where the shape names part and
    /// group of each block, and the remote blocks are those of the ticket.
    async fn order(&mut self, words: &[&str]) {
        let number: u64 = words[0].parse().unwrap();
        let mode = match words[1] {
            "R" => Mode::Read,
            _ => Mode::Write,
        };
        let side = match words[2] {
            "S" => Side::Source,
            _ => Side::Destination,
        };
        let shape = words[7].split(',').map(|spot| {
            let (part, group) = spot.split_once(':').unwrap();
            (part.parse().unwrap(), group.parse().unwrap())
        });
        let shape: Vec<(u16, u16)> = shape.collect();
        let blocks = self.take(&shape);
        let how = words[6];
        let (late, spoilt) = (how == "late", how == "spoilt");
        if side == Side::Source && !late {
            self.fill(number, &blocks);
        }
        let remote = words[8]
            .split(',')
            .filter(|_| words[8] != "-")
            .map(block_ref);
        let remote: Vec<BlockRef> = remote.collect();
        let ordered = TransferOrder {
            transfer: transfer(number),
            request: RequestKey(number),
            mode,
            side,
            synchronous: false,
            parts: self.parts(mode, side, incarnation(words[3]), &blocks, &remote, !late),
            timeout_ms: words[4].parse().unwrap(),
            lease_ms: words[5].parse().unwrap(),
        };
        let before = self.worker.driver.metrics().bytes_summed;
        self.worker.driver.order(&ordered);
        if spoilt {
            let bytes: u64 = ordered.parts.iter().map(|part| part.length_bytes).sum();
            self.spoil(before + bytes, blocks[0].1).await;
        }
        let named: Vec<String> = blocks.iter().map(|(_, at)| text(*at)).collect();
        let deal = Deal {
            side,
            blocks,
            spoilt,
            late,
        };
        self.deals.insert(number, deal);
        self.say(&format!("ordered {number} {}", named.join(",")))
            .await;
    }

    fn parts(
        &self,
        mode: Mode,
        side: Side,
        peer: Incarnation,
        blocks: &[(u16, BlockRef)],
        remote: &[BlockRef],
        ready: bool,
    ) -> Vec<PartOrder> {
        let (read, lends) = (mode == Mode::Read, side.lends(mode));
        let mut parts: BTreeMap<u16, PartOrder> = BTreeMap::new();
        for (place, (index, block)) in blocks.iter().enumerate() {
            let part = parts.entry(*index).or_insert_with(|| PartOrder {
                part: PartId {
                    source: 0,
                    destination: 0,
                    index: *index,
                },
                peer: (!(read && lends)).then_some(peer),
                local: Vec::new(),
                remote: Vec::new(),
                length_bytes: 0,
                ready: ready || side == Side::Destination,
            });
            part.local.push(*block);
            part.remote.extend(remote.get(place));
            part.length_bytes += self.worker.block_bytes(block.group);
        }
        parts.into_values().collect()
    }

    /// Changes a byte of what is offered, once it is fixed: a block that was freed too early.
    async fn spoil(&mut self, summed_bytes: u64, block: BlockRef) {
        let worker = &self.worker;
        let fixed = || worker.driver.metrics().bytes_summed >= summed_bytes;
        until("checksums of an offer", fixed).await;
        let mut bytes = self.read(block);
        *bytes.last_mut().unwrap() ^= 0x10;
        self.write(block, &bytes);
    }

    fn ready(&mut self, number: u64, index: u16) {
        // It may have failed and been reported before its source was there.
        let Some(deal) = self.deals.get(&number) else {
            return;
        };
        let blocks: Vec<_> = deal.blocks.iter().copied().enumerate().collect();
        for (place, (_, block)) in blocks.iter().filter(|(_, (of, _))| *of == index) {
            self.write(
                *block,
                &content(self.seed, number, *place, self.bytes(*block)),
            );
        }
        let part = PartId {
            source: 0,
            destination: 0,
            index,
        };
        self.worker.driver.ready(transfer(number), part);
    }

    /// Blocks out of the pool, with their generations. They must be as they were freed.
    fn take(&mut self, shape: &[(u16, u16)]) -> Vec<(u16, BlockRef)> {
        let mut taken = Vec::new();
        for (part, group) in shape {
            let free = &mut self.pool[usize::from(*group)];
            let block = free.swap_remove(self.dice.below(free.len()));
            let generation = self.generations.get(&(*group, block)).copied();
            let block = BlockRef {
                group: *group,
                block,
                generation: Generation(generation.unwrap_or(1)),
            };
            self.assert_free(block);
            taken.push((*part, block));
        }
        taken
    }

    fn free(&mut self, blocks: &[(u16, BlockRef)]) {
        for (_, block) in blocks {
            self.write(*block, &vec![CANARY; self.bytes(*block)]);
            let generation = self.generations.entry((block.group, block.block));
            *generation.or_insert(1) += 1;
            self.pool[usize::from(block.group)].push(block.block);
        }
    }

    fn assert_free(&self, block: BlockRef) {
        let bytes = self.read(block);
        let clean = bytes.iter().all(|byte| *byte == CANARY);
        assert!(clean, "freed memory was touched: {block:?} {bytes:x?}");
    }

    /// Looks at all that is free.
    fn patrol(&self) {
        for (group, free) in (0..).zip(&self.pool) {
            for block in free {
                self.assert_free(BlockRef {
                    group,
                    block: *block,
                    generation: Generation(0),
                });
            }
        }
    }

    fn bytes(&self, block: BlockRef) -> usize {
        usize::try_from(self.worker.block_bytes(block.group)).unwrap()
    }

    fn read(&self, block: BlockRef) -> Vec<u8> {
        self.worker.block(block.group.into(), block.block)
    }

    fn write(&self, block: BlockRef, bytes: &[u8]) {
        let (group, blocks) = (block.group.into(), [block.block]);
        let written =
            tokio::task::block_in_place(|| self.worker.layout.write(group, &blocks, bytes));
        written.unwrap();
    }

    fn fill(&self, number: u64, blocks: &[(u16, BlockRef)]) {
        for (place, (_, block)) in blocks.iter().enumerate() {
            self.write(
                *block,
                &content(self.seed, number, place, self.bytes(*block)),
            );
        }
    }

    fn assert_content(&self, number: u64, place: usize, block: BlockRef) {
        let expected = content(self.seed, number, place, self.bytes(block));
        assert_eq!(self.read(block), expected, "transfer {number}, {block:?}");
    }

    /// Reports, checks and frees what is over.
    async fn collect(&mut self) {
        let results = self.worker.driver.collect().unwrap();
        for RequestKey(number) in results.sent {
            let deal = self.deals.remove(&number).expect("reported once");
            assert_eq!(deal.side, Side::Source);
            for (place, (_, block)) in deal.blocks.iter().enumerate() {
                if !deal.spoilt && !deal.late {
                    self.assert_content(number, place, *block);
                }
            }
            self.free(&deal.blocks);
            self.say(&format!("over {number} sent")).await;
        }
        for RequestKey(number) in results.received {
            let deal = self.deals.remove(&number).expect("reported once");
            assert_eq!(deal.side, Side::Destination);
            let failed = results.failed.contains(&RequestKey(number));
            let invalid = |at: &BlockRef| failed || results.invalid_blocks.contains(&at.block);
            let mut word = "well";
            for (place, (_, block)) in deal.blocks.iter().enumerate() {
                match invalid(block) {
                    true => word = "failed",
                    false => self.assert_content(number, place, *block),
                }
            }
            self.free(&deal.blocks);
            self.say(&format!("over {number} {word}")).await;
        }
        if self.resting && self.deals.is_empty() && self.worker.driver.is_idle() {
            self.resting = false;
            self.say("rested").await;
        }
    }

    /// Everything is over: all blocks are back, all tables empty, all memory as it was freed.
    async fn end(mut self) {
        let tables = self.worker.driver.tables();
        assert_eq!(
            (tables.transfers, tables.releasing, tables.offers),
            (0, 0, 0)
        );
        for free in &self.pool {
            assert_eq!(free.len(), usize::try_from(BLOCKS).unwrap() - 1);
        }
        let gauges = self.worker.driver.metrics().gauges;
        assert_eq!(gauges, Default::default(), "bytes of nothing");
        self.worker.driver.shutdown().await;
        let clean = |region: &Vec<u8>| region.iter().all(|byte| *byte == CANARY);
        assert!(self.worker.all().iter().all(clean), "memory was touched");
        let metrics = self.worker.driver.metrics();
        let line = format!(
            "end {} {} {} {} {} {}",
            metrics.refused_stranger,
            metrics.machine.stale_incarnations,
            metrics.machine.stale_connections,
            metrics.integrity_failures,
            metrics.machine.fences_close + metrics.machine.fences_revoke,
            metrics.machine.retries,
        );
        self.say(&line).await;
    }
}

/// The bytes of one block of one transfer.
fn content(seed: u64, number: u64, place: usize, length: usize) -> Vec<u8> {
    let mut dice = Dice::new(seed ^ (number << 20) ^ place as u64);
    std::iter::repeat_with(|| dice.byte())
        .take(length)
        .collect()
}

fn transfer(number: u64) -> TransferId {
    TransferId(u128::from(number))
}

fn incarnation(word: &str) -> Incarnation {
    Incarnation(u128::from_str_radix(word, 16).unwrap())
}

fn text(block: BlockRef) -> String {
    format!("{}:{}:{}", block.group, block.block, block.generation.0)
}

fn block_ref(word: &str) -> BlockRef {
    let numbers: Vec<u64> = word
        .split(':')
        .map(|number| number.parse().unwrap())
        .collect();
    BlockRef {
        group: u16::try_from(numbers[0]).unwrap(),
        block: u32::try_from(numbers[1]).unwrap(),
        generation: Generation(numbers[2]),
    }
}
