//! Long histories by seed: first with every fault, then without, until nothing is left.

use tessera_lifecycle::LayoutClass;
use tessera_lifecycle::peer::Mode;

use crate::random::Random;
use crate::reached::Reached;
use crate::world::{Action, Budget, Setup, State, World};

/// Seeds of one run of the test. A seed takes about a millisecond.
const SEEDS: u64 = 1_000;
/// Runs as many seeds instead.
const SEEDS_VARIABLE: &str = "TESSERA_SIM_SEEDS";
/// Replays one seed instead.
const SEED_VARIABLE: &str = "TESSERA_SIM_SEED";

/// Says which seed it was when a test ends badly.
struct Replay(u64);

impl Drop for Replay {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let seed = self.0;
            eprintln!("replay: {SEED_VARIABLE}={seed} cargo test -p tessera-sim --test peer seed");
        }
    }
}

fn seeds() -> std::ops::Range<u64> {
    let number = |name| std::env::var(name).ok().map(|text| text.parse::<u64>());
    match (number(SEED_VARIABLE), number(SEEDS_VARIABLE)) {
        (Some(seed), _) => {
            let seed = seed.expect("a number");
            seed..seed + 1
        }
        (None, Some(count)) => 0..count.expect("a number"),
        (None, None) => 0..SEEDS,
    }
}

fn setup(random: &mut Random, faults: bool) -> Setup {
    let mode = if random.chance(50) {
        Mode::Read
    } else {
        Mode::Write
    };
    let mixed = random.chance(30);
    let ticketed = random.chance(50);
    let unseen = random.chance(20);
    let class = match random.chance(50) {
        true => LayoutClass::Request,
        false => LayoutClass::Block,
    };
    let up_to = |random: &mut Random, most: u64| u8::try_from(random.below(most + 1)).expect("few");
    let budget = match faults {
        false => Budget::default(),
        true => Budget {
            lost: up_to(random, 6),
            doubled: up_to(random, 6),
            early: up_to(random, 6),
            breaks: up_to(random, 6),
            errors: up_to(random, 4),
            ticks: up_to(random, 40),
            aborts: up_to(random, 4),
            preemptions: up_to(random, 2),
            restarts: up_to(random, 2),
            unreachable: up_to(random, 2),
            again: up_to(random, 3),
            devices: up_to(random, 2),
        },
    };
    Setup {
        mode,
        mixed,
        ticketed,
        unseen,
        class,
        synchronous: class == LayoutClass::Request && random.chance(20),
        prefill: 1 + random.index(2),
        decode: 1 + random.index(2),
        parts: u16::from(up_to(random, 3)),
        transfers: 3 + random.index(8),
        quarantine_bytes: 8 * random.below(20),
        budget,
    }
}

/// Whether an action is chosen less often than the others.
fn is_rare(action: &Action) -> bool {
    !matches!(
        action,
        Action::Order(..)
            | Action::Deliver(_)
            | Action::Connect(..)
            | Action::Land(_)
            | Action::Done(_)
            | Action::Fenced(_)
            | Action::Proven(_)
            | Action::Notice(..)
    )
}

fn assert_sound(state: &State) {
    assert!(state.broken.is_none(), "{:?}", state.broken);
}

fn run(seed: u64, faults: bool) -> World {
    let _replay = Replay(seed);
    let mut random = Random::new(seed);
    let world = World::new(setup(&mut random, faults));
    let mut state = world.initial();
    let events = if faults { 600 } else { 10_000 };
    for _ in 0..events {
        let mut actions = world.enabled(&state);
        let rare = random.chance(20);
        if actions.iter().any(|action| is_rare(action) == rare) {
            actions.retain(|action| is_rare(action) == rare);
        }
        if actions.is_empty() {
            break;
        }
        let action = &actions[random.index(actions.len())];
        state = world.apply(&state, action);
        assert_sound(&state);
    }
    match world.finish(&state, false) {
        Ok(last) => assert!(last.is_quiet()),
        Err(stuck) => panic!("{:?}\n{}", world.setup, stuck.what_is_left()),
    }
    world
}

#[test]
fn by_seed_no_order_of_events_breaks_a_property_and_everything_ends() {
    let all = seeds();
    let whole = all.clone().count() > 1;
    let worlds: Vec<World> = all.map(|seed| run(seed, true)).collect();
    let seen = |what: &Reached| worlds.iter().any(|world| world.has_seen(*what));
    let blind: Vec<_> = Reached::ALL
        .into_iter()
        .filter(|what| !seen(what))
        .collect();
    assert!(!whole || blind.is_empty(), "never reached: {blind:?}");
}

#[test]
fn by_seed_without_faults_every_transfer_succeeds() {
    for seed in seeds().take(40) {
        let world = run(seed, false);
        assert!(
            !world.has_seen(Reached::Failed),
            "seed {seed}: {:?}",
            world.setup
        );
    }
}
