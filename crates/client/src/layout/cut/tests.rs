//! Heads on ranks, and whole models cut from one number of ranks to another, byte by byte.

use std::collections::BTreeMap;

use proptest::prelude::*;
use tessera_lifecycle::plan::Destination;
use tessera_lifecycle::{Axes, GroupKind, GroupSpec, Shape};
use tessera_proto::Topology;
use tessera_transport::{Lent, Region, Segments};

use super::*;
use crate::geometry::{BlockGeometry, TensorView};

const BLOCKS: u64 = 3;

/// A model: each layer with its sizes, of which every byte has a label of its own.
#[derive(Clone, Debug)]
struct Model {
    heads: u32,
    replicated: bool,
    tokens: u64,
    content: u64,
}

/// How an engine keeps it: the memory order of the axes (block, head, token, content), kernel tiles
/// of a block, and bytes between rows.
#[derive(Clone, Debug)]
struct Kept {
    ranks: u32,
    order: Vec<usize>,
    tiles: u64,
    padding: u64,
}

struct Rank {
    layout: Layout,
    region: Arc<Region>,
    /// Where each byte of the model lies, by layer, block, head, token and content.
    places: BTreeMap<[u64; 4], usize>,
}

impl Model {
    fn held(&self, at: Seat) -> Range<u32> {
        match self.replicated {
            true => 0..self.heads,
            false => at.heads(self.heads).unwrap(),
        }
    }

    /// Heads as cuts count them.
    fn cut_heads(&self) -> u32 {
        if self.replicated { 1 } else { self.heads }
    }

    fn label([block, head, token, content]: [u64; 4]) -> u8 {
        let mixed = block * 1_009 + head * 211 + token * 37 + content * 5;
        u8::try_from(mixed % 251).unwrap() + 1
    }

    fn on(&self, kept: &Kept, rank: u32) -> Rank {
        let at = Seat {
            rank,
            ranks: kept.ranks,
        };
        let held = self.held(at);
        let heads = u64::from(held.end - held.start);
        let tile_tokens = self.tokens / kept.tiles;
        let shape = vec![BLOCKS * kept.tiles, heads, tile_tokens, self.content];
        let mut strides = [0_u64; 4];
        let mut stride = 1;
        for axis in kept.order.iter().rev() {
            stride += kept.padding;
            strides[*axis] = stride;
            stride *= shape[*axis];
        }
        let region = Region::allocate(usize::try_from(stride).unwrap()).unwrap();
        let address = u64::try_from(region.base().addr()).unwrap();
        let view = TensorView {
            address,
            shape,
            strides_bytes: strides.map(|of| i64::try_from(of).unwrap()).to_vec(),
            item_bytes: 1,
            storage_address: address,
            storage_bytes: stride,
        };
        let mut places = BTreeMap::new();
        for block in 0..BLOCKS {
            for (local, head) in (0..).zip(held.clone()) {
                for token in 0..self.tokens {
                    for content in 0..self.content {
                        let tile = block * kept.tiles + token / tile_tokens;
                        let at = [tile, local, token % tile_tokens, content];
                        let offset: u64 = at.iter().zip(strides).map(|(at, by)| at * by).sum();
                        let name = [block, u64::from(head), token, content];
                        places.insert(name, usize::try_from(offset).unwrap());
                    }
                }
            }
        }
        let layout = Layout::new(&self.shape(), vec![self.layer(&view, &region)]);
        Rank {
            layout: layout.unwrap(),
            region,
            places,
        }
    }

    fn shape(&self) -> Shape {
        let group = GroupSpec {
            kind: GroupKind::Full,
            block_tokens: self.tokens,
            replicated: Axes {
                tp: self.replicated,
                ..Axes::default()
            },
        };
        let tokens = self.tokens;
        Shape::new(vec![group], Some(tokens), tokens, Topology::SINGLE).unwrap()
    }

    fn layer(&self, view: &TensorView, region: &Arc<Region>) -> LayerMemory {
        let geometry = BlockGeometry::derive(view, BLOCKS).unwrap();
        let each = BlockGeometry::of_each(view, 1, BLOCKS).unwrap();
        let runs = |of: &BlockGeometry| BlockRun::all(region, of).collect();
        LayerMemory {
            heads: Some(Heads {
                format: format!("{:?}", each[0].order),
                runs: each.iter().map(runs).collect(),
            }),
            ..LayerMemory::from_geometry("l", 0, BLOCKS, region, &geometry)
        }
    }
}

impl Rank {
    fn write_all(&self, byte: impl Fn([u64; 4]) -> u8) {
        let mut bytes = vec![0; self.region.length_bytes()];
        for (name, at) in &self.places {
            bytes[*at] = byte(*name);
        }
        let mut whole = Lent::new(Segments::whole(&self.region)).unwrap();
        whole.copy_from(&bytes).unwrap();
    }

    fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.region.length_bytes()];
        Segments::whole(&self.region).copy_to(&mut bytes).unwrap();
        bytes
    }
}

/// Every byte of the model goes from the ranks of `from` to those of `to`, once to each place that
/// it has there, and nothing else is touched.
fn hand_over(model: &Model, from: &Kept, to: &Kept) {
    let seats = |kept: &Kept| {
        let ranks = kept.ranks;
        (0..ranks).map(move |rank| Seat { rank, ranks })
    };
    let sources: Vec<_> = seats(from).map(|at| model.on(from, at.rank)).collect();
    for source in &sources {
        source.write_all(Model::label);
    }
    for at in seats(to) {
        let target = model.on(to, at.rank);
        let mut written = vec![0; target.region.length_bytes()];
        for (other, source) in seats(from).zip(&sources) {
            let heads = passed(model.cut_heads(), other, at).unwrap();
            let cut = |rank: &Rank, seat: Seat| {
                let held = seat.heads(model.cut_heads()).unwrap();
                let near = |head: u32| head.saturating_sub(held.start);
                rank.layout.cut(|_| near(heads.start)..near(heads.end))
            };
            let (give, take) = (cut(source, other), cut(&target, at));
            assert_eq!(give.payload_bytes(0, 1), take.payload_bytes(0, 1));
            if heads.is_empty() {
                assert_eq!(give.payload_bytes(0, 1), 0);
                continue;
            }
            // Blocks of other numbers on either side.
            let bytes = give.gather(0, &[0, 1, 2]).unwrap();
            let mut payload = vec![0; usize::try_from(bytes.length_bytes()).unwrap()];
            bytes.copy_to(&mut payload).unwrap();
            let blocks = [2, 0, 1].map(Destination::Block);
            let before = target.bytes();
            let mut lent = take.scatter(0, &blocks, None).unwrap();
            lent.copy_from(&vec![0; payload.len()]).unwrap();
            lent.copy_from(&vec![255; payload.len()]).unwrap();
            drop(lent);
            for (place, (byte, before)) in target.bytes().iter().zip(&before).enumerate() {
                if *byte == 255 {
                    written[place] += 1;
                }
                assert!(*byte == 255 || byte == before);
            }
            let mut lent = take.scatter(0, &blocks, None).unwrap();
            lent.copy_from(&payload).unwrap();
        }
        let bytes = target.bytes();
        let mut expected = vec![0; bytes.len()];
        for ([block, head, token, content], at) in &target.places {
            assert_eq!(written[*at], 1, "head {head} comes once");
            let from = [1, 2, 0][usize::try_from(*block).unwrap()];
            expected[*at] = Model::label([from, *head, *token, *content]);
        }
        assert_eq!(bytes, expected);
    }
}

fn kept(ranks: u32) -> impl Strategy<Value = Kept> {
    let order = Just(vec![0_usize, 1, 2, 3]).prop_shuffle();
    (order, prop::sample::select(vec![1_u64, 2]), 0_u64..3).prop_filter_map(
        "content is innermost, and tiles need no order of their own",
        move |(order, tiles, padding)| {
            // What is within a head is compared; heads and blocks may lie anywhere.
            let within: Vec<_> = order.iter().filter(|axis| **axis > 1).collect();
            let sorted = within == [&2, &3];
            let tiled = tiles == 1 || order.iter().position(|axis| *axis == 0) == Some(0);
            (sorted && tiled).then_some(Kept {
                ranks,
                order,
                tiles,
                padding,
            })
        },
    )
}

/// Sizes of both sides that divide.
fn pair() -> impl Strategy<Value = (Model, Kept, Kept)> {
    let sizes = vec![
        (2, 2, 1),
        (4, 2, 1),
        (4, 4, 2),
        (8, 2, 4),
        (6, 3, 1),
        (6, 2, 6),
        (1, 2, 1),
        (2, 4, 1),
        (2, 4, 2),
        (2, 8, 4),
        (3, 6, 1),
    ];
    (prop::sample::select(sizes), any::<bool>()).prop_flat_map(|((heads, from, to), replicated)| {
        let model = Model {
            heads,
            replicated,
            tokens: 4,
            content: 3,
        };
        (Just(model), kept(from), kept(to))
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn every_byte_goes_once_to_every_place_that_it_has_in_both_directions(
        (model, one, other) in pair(),
    ) {
        // A tile is a piece of the payload of a head.
        let other = Kept { tiles: one.tiles, ..other };
        let fits = |kept: &Kept| kept.tiles == 1 || kept.order[0] == 0;
        prop_assume!(fits(&one) && fits(&other));
        // All heads of a replicated block are one piece, and lie alike.
        let other = match model.replicated {
            true => Kept { order: one.order.clone(), ..other },
            false => other,
        };
        hand_over(&model, &one, &other);
        hand_over(&model, &other, &one);
    }

    #[test]
    fn every_head_has_one_source_for_each_taker(
        heads in 1_u32..13,
        from in 1_u32..9,
        to in 1_u32..9,
    ) {
        let at = |rank, ranks| Seat { rank, ranks };
        let whole = [from, to].map(|ranks| at(0, ranks).heads(heads).is_some());
        for taker in (0..to).map(|rank| at(rank, to)) {
            let parts = (0..from).map(|rank| passed(heads, at(rank, from), taker));
            let parts: Option<Vec<_>> = parts.collect();
            prop_assert_eq!(parts.is_some(), whole == [true, true]);
            let Some(parts) = parts else { continue };
            let mut all: Vec<u32> = parts.into_iter().flatten().collect();
            all.sort_unstable();
            prop_assert_eq!(all, taker.heads(heads).unwrap().collect::<Vec<_>>());
        }
    }
}

#[test]
fn takers_of_what_all_sources_hold_are_spread_over_them() {
    let giver = |taker: u32| {
        let to = Seat {
            rank: taker,
            ranks: 2,
        };
        let from = (0..4).map(|rank| Seat { rank, ranks: 4 });
        let mut givers = from.filter(|from| !passed(1, *from, to).unwrap().is_empty());
        let giver = givers.next().unwrap().rank;
        assert_eq!(givers.next(), None);
        giver
    };
    assert_eq!([giver(0), giver(1)], [0, 1]);
}

#[test]
fn heads_of_a_dense_block_that_pass_together_are_one_run() {
    let model = Model {
        heads: 4,
        replicated: false,
        tokens: 4,
        content: 3,
    };
    let dense = Kept {
        ranks: 1,
        order: vec![0, 1, 2, 3],
        tiles: 1,
        padding: 0,
    };
    let cut = model.on(&dense, 0).layout.cut(|_| 1..3);
    assert_eq!(cut.gather(0, &[1]).unwrap().count(), 1);
    assert_eq!(cut.payload_bytes(0, 1), 2 * 4 * 3);
}

#[test]
fn one_head_is_named_alike_on_any_number_of_ranks_and_unlike_another() {
    let model = |content| Model {
        heads: 4,
        replicated: false,
        tokens: 4,
        content,
    };
    let on = |ranks, order: [usize; 4], content| {
        let kept = Kept {
            ranks,
            order: order.to_vec(),
            tiles: 1,
            padding: 0,
        };
        model(content).on(&kept, 0).layout.head_fingerprint(0)
    };
    let first = on(1, [0, 1, 2, 3], 3);
    assert_eq!(first, on(4, [0, 1, 2, 3], 3));
    assert_eq!(first, on(2, [0, 2, 1, 3], 3));
    assert_ne!(first, on(1, [0, 1, 3, 2], 3), "content within a head");
    assert_ne!(first, on(1, [0, 1, 2, 3], 4));
}

#[test]
fn heads_that_are_not_the_block_are_refused() {
    let region = Region::allocate(64).unwrap();
    let run = |offset_bytes, length_bytes| BlockRun {
        region: Arc::clone(&region),
        offset_bytes,
        block_stride_bytes: 16,
        length_bytes,
    };
    let with = |heads: Vec<Vec<BlockRun>>| {
        let layer = LayerMemory {
            name: "l".into(),
            group: 0,
            format: "f".into(),
            num_blocks: 3,
            runs: vec![run(0, 16)],
            heads: Some(Heads {
                format: "h".into(),
                runs: heads,
            }),
        };
        let model = Model {
            heads: 2,
            replicated: false,
            tokens: 4,
            content: 1,
        };
        Layout::new(&model.shape(), vec![layer])
    };
    assert_eq!(
        with(vec![vec![run(0, 8)], vec![run(8, 8)]])
            .unwrap()
            .heads(0),
        Some(2)
    );
    for wrong in [
        vec![vec![run(0, 8)]],
        vec![vec![run(0, 4)], vec![run(4, 12)]],
    ] {
        assert!(matches!(with(wrong), Err(LayoutError::Heads { .. })));
    }
    let outside = vec![vec![run(0, 8)], vec![run(60, 8)]];
    assert!(matches!(with(outside), Err(LayoutError::Outside { .. })));
}
