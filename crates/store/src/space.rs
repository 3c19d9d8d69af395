//! What the space lock guards: which extents are free and which object leaves next.
//!
//! Called by the store for everything that changes the population. Nothing here is longer than a
//! bounded number of steps, so that the lock is held for microseconds also while a store full of
//! small objects makes room for a large one.
//!
//! **Making room.** Objects leave in their order until the new extent fits. Order in
//! time is not order in memory: many small objects may have left without two of them having been
//! neighbours. Once as many bytes have left as are needed, the hole of each further victim is
//! widened by evicting its neighbours, first those that were read least and are cheap to compute,
//! until it fits. Only held
//! extents stop it; so a store in which nothing is held always finds room, and one in which much
//! is held refuses after evicting a bounded amount, instead of emptying itself for one object.
//!
//! Whose objects leave, `tenants.rs` says. A neighbour is spared while its tenant holds no more
//! than its share, until half of what may be evicted for one extent has left in vain.

use crate::config::TenantLimits;
use crate::extents::Extents;
use crate::geometry::{Geometry, Need};
use crate::index::Index;
use crate::order::{Order, Turn};
use crate::slots::{SlotId, Slots};
use crate::stat::TenantStat;
use crate::state::{Kind, Queue, State};
use crate::tenants::{TenantId, Tenants};
use tessera_proto::{NamespaceDigest, TenantTag};

/// Turns of the order for one hold of the lock.
const TURNS_PER_HOLD: usize = 64;
/// Victims after which others get the lock, unless the extent fits now.
const VICTIMS_PER_HOLD: u64 = 64;
/// Rounds given to objects that were read, before one has to leave all the same.
const KEPT_BEFORE_HURRY: usize = 256;
/// Neighbours that are looked at to widen one hole.
const WIDEN_STEPS: usize = 1_024;
/// What may be evicted for one extent, as a multiple of its size.
const EVICT_FACTOR: u64 = 8;
/// And as a number of victims, for extents smaller than their victims.
const EVICT_VICTIMS: u64 = 16;

/// What a store holds, and what left it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Population {
    pub(crate) objects: u64,
    pub(crate) bytes: u64,
    pub(crate) reserved_bytes: u64,
    pub(crate) stored: u64,
    pub(crate) evicted: u64,
    pub(crate) evicted_bytes: u64,
    pub(crate) removed: u64,
}

/// How far one attempt to make room has come.
#[derive(Debug, Default)]
pub(crate) struct Effort {
    evicted_units: u64,
    victims: u64,
    kept: usize,
}

/// What one hold of the lock came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Room {
    /// Here it is, `Reserved`.
    Made(SlotId),
    /// There is none to be made.
    None,
    /// Let others have the lock and ask again.
    NotYet,
}

/// The state behind the space lock.
#[derive(Debug)]
pub(crate) struct Space {
    geometry: Geometry,
    extents: Extents,
    tenants: Tenants,
    population: Population,
    /// Namespaces that are being dropped, each once for each drop.
    pub(crate) dropping: Vec<NamespaceDigest>,
    /// Lookups so far: what is used between two of them is used in the order of chains.
    round: u64,
}

impl Space {
    pub(crate) fn new(geometry: Geometry, slots: &Slots, tenants: Tenants) -> Self {
        Self {
            geometry,
            extents: Extents::new(geometry, slots),
            tenants,
            population: Population::default(),
            dropping: Vec::new(),
            round: 0,
        }
    }

    pub(crate) fn population(&self) -> Population {
        self.population
    }

    /// The parts, for inspection.
    pub(crate) fn parts(&self) -> (&Extents, &Tenants) {
        (&self.extents, &self.tenants)
    }

    /// What the tenants with a name in `limits` hold, and all others together.
    pub(crate) fn tenants(&self, limits: &TenantLimits) -> Vec<TenantStat> {
        let mut others = TenantStat::default();
        let mut named: Vec<_> = limits
            .named
            .iter()
            .map(|(name, _)| TenantStat {
                name: name.clone(),
                ..TenantStat::default()
            })
            .collect();
        for tenant in self.tenants.iter() {
            let at = limits
                .named
                .iter()
                .position(|(name, _)| TenantTag::of(name) == tenant.tag());
            let stat = at.map_or(&mut others, |at| &mut named[at]);
            stat.objects += tenant.objects;
            stat.bytes += tenant.bytes - tenant.reserved_bytes;
            stat.evictions += tenant.evicted;
        }
        named.push(others);
        named
    }

    /// Bytes of the arena that no extent takes.
    pub(crate) fn free_bytes(&self) -> u64 {
        self.geometry.bytes(self.extents.free_units())
    }

    /// Takes an extent for a payload of `length_bytes` of a tenant, evicting as needed.
    pub(crate) fn make_room(
        &mut self,
        slots: &Slots,
        index: &Index,
        (tag, length_bytes): (TenantTag, u32),
        effort: &mut Effort,
    ) -> Room {
        let need = self.geometry.need(u64::from(length_bytes));
        let tenant = self.tenants.enter(tag);
        let victims_before = effort.victims;
        for _ in 0..TURNS_PER_HOLD {
            let over_quota = self.tenants.excess(tenant, u64::from(length_bytes)) > 0;
            if !over_quota && let Some(slot) = self.extents.allocate(slots, length_bytes) {
                self.reserve(slots, slot, tenant);
                return Room::Made(slot);
            }
            if effort.is_spent(need) {
                return Room::None;
            }
            if effort.victims - victims_before > VICTIMS_PER_HOLD {
                break;
            }
            let payer = match over_quota {
                true => Some(tenant),
                false => self.tenants.payer(),
            };
            let Some(payer) = payer else {
                return Room::None;
            };
            match self.turn(slots, payer, effort.kept >= KEPT_BEFORE_HURRY) {
                Turn::Empty => return Room::None,
                Turn::Kept => effort.kept += 1,
                Turn::Evict(victim) => self.evict_for(slots, index, need, victim, effort),
            }
        }
        Room::NotYet
    }

    /// A lookup begins. Returns its round.
    pub(crate) fn begin_round(&mut self) -> u64 {
        self.round += 1;
        self.round
    }

    /// A lookup of `round` holds an object, unless that has left since.
    pub(crate) fn use_now(&mut self, slots: &Slots, slot: SlotId, round: u64) {
        self.used(slots, slot, Some(round));
    }

    /// A reader who looked nothing up holds an object.
    pub(crate) fn use_alone(&mut self, slots: &Slots, slot: SlotId) {
        self.used(slots, slot, None);
    }

    fn used(&mut self, slots: &Slots, slot: SlotId, round: Option<u64>) {
        let state = slots[slot].state();
        if state.kind() == Kind::Stored {
            let units = self.extents.units_of(slots, slot);
            let order = &mut self.tenants.at_mut(state.tenant()).order;
            order.use_now(slots, slot, units, round);
        }
    }

    /// The next turn in the order of a tenant.
    fn turn(&mut self, slots: &Slots, tenant: TenantId, hurry: bool) -> Turn {
        let extents = &self.extents;
        let order = &mut self.tenants.at_mut(tenant).order;
        order.turn(slots, |slot| extents.units_of(slots, slot), hurry)
    }

    /// Charges a tenant for an extent that was just taken.
    fn reserve(&mut self, slots: &Slots, slot: SlotId, tenant: TenantId) {
        let record = &slots[slot];
        record.set_state(State::new(Kind::Reserved).with_tenant(tenant));
        let bytes = u64::from(record.measure.get());
        let tenant = self.tenants.at_mut(tenant);
        tenant.bytes += bytes;
        tenant.reserved_bytes += bytes;
        self.population.reserved_bytes += bytes;
    }

    /// Takes a reserved extent out of what its tenant is charged for.
    fn discharge(&mut self, slots: &Slots, slot: SlotId) {
        let bytes = u64::from(slots[slot].measure.get());
        let tenant = self.tenants.at_mut(slots[slot].state().tenant());
        tenant.bytes -= bytes;
        tenant.reserved_bytes -= bytes;
        self.population.reserved_bytes -= bytes;
    }

    /// Enters a reserved extent whose id is set into the index, as `state`, which is `Stored` and
    /// maybe held, at the cost of the tenant `tag`. False if the id is there already; the extent
    /// is then still reserved.
    pub(crate) fn publish(
        &mut self,
        slots: &Slots,
        index: &Index,
        slot: SlotId,
        (tag, state): (TenantTag, State),
    ) -> bool {
        let record = &slots[slot];
        let reserved = record.state();
        let tenant = self.tenants.enter(tag);
        record.set_state(state.with_tenant(tenant));
        if !index.enter(slots, slot) {
            record.set_state(reserved);
            return false;
        }
        let bytes = u64::from(record.measure.get());
        let writer = self.tenants.at_mut(reserved.tenant());
        writer.bytes -= bytes;
        writer.reserved_bytes -= bytes;
        let units = self.extents.units_of(slots, slot);
        let charged = self.tenants.at_mut(tenant);
        charged.bytes += bytes;
        charged.objects += 1;
        let hash = index.hash(&record.id());
        charged.order.admit(slots, slot, (units, hash), self.round);
        self.tenants.stored(tenant, bytes);
        self.population.reserved_bytes -= bytes;
        self.population.bytes += bytes;
        self.population.objects += 1;
        self.population.stored += 1;
        self.trim(slots, index, tenant);
        true
    }

    /// Evicts of a tenant that came to be over its quota. What arrived without a quota that was
    /// asked for, as what a disk gave back, pays so.
    fn trim(&mut self, slots: &Slots, index: &Index, tenant: TenantId) {
        let mut effort = Effort::default();
        for turns in 0..TURNS_PER_HOLD {
            if self.tenants.excess(tenant, 0) == 0 {
                return;
            }
            match self.turn(slots, tenant, turns > TURNS_PER_HOLD / 2) {
                Turn::Empty => return,
                Turn::Kept => {}
                Turn::Evict(victim) => {
                    self.evict(slots, index, victim, &mut effort);
                }
            }
        }
    }

    /// Gives a reserved extent back.
    pub(crate) fn give_back(&mut self, slots: &Slots, slot: SlotId) {
        self.discharge(slots, slot);
        self.extents.free(slots, slot);
    }

    /// Takes an object out of the index for good. Its memory is free at once, or when the last
    /// holder leaves.
    pub(crate) fn remove(&mut self, slots: &Slots, index: &Index, slot: SlotId) {
        let mut held = false;
        let left = index.leave(slots, slot, |record| {
            let was = record.change(|state| Some(state.with_kind(Kind::Removed)));
            held = was.is_ok_and(|state| state.holds() > 0);
            true
        });
        debug_assert!(left, "entries leave only under the space lock");
        self.forget(slots, slot);
        self.population.removed += 1;
        if !held {
            self.extents.free(slots, slot);
        }
    }

    /// The last holder of a removed or a parked object has left.
    pub(crate) fn settle(&mut self, slots: &Slots, slot: SlotId, last: State) {
        if last.kind() == Kind::Removed {
            self.extents.free(slots, slot);
        } else if slots[slot].kind() == Kind::Stored {
            // By now the record may be another object's; if that one is parked and not held, it
            // belongs back just the same.
            let units = self.extents.units_of(slots, slot);
            let tenant = slots[slot].state().tenant();
            self.tenants.at_mut(tenant).order.unpark(slots, slot, units);
        }
    }

    fn evict_for(
        &mut self,
        slots: &Slots,
        index: &Index,
        need: Need,
        victim: SlotId,
        effort: &mut Effort,
    ) {
        let payer = slots[victim].state().tenant();
        let widen = effort.evicted_units >= u64::from(need.units);
        let spared = effort.evicted_units < EVICT_FACTOR / 2 * u64::from(need.units);
        let share_bytes = self.tenants.share_bytes();
        let may_leave = |tenants: &Tenants, tenant: TenantId| {
            !spared || tenant == payer || tenants.at(tenant).bytes > share_bytes
        };
        let Some(hole) = self.evict(slots, index, victim, effort) else {
            return; // Held since its turn was looked at; the next turn parks it.
        };
        if widen
            && let Some(neighbours) =
                self.plan_widening(slots, need, hole, |tenant| may_leave(&self.tenants, tenant))
        {
            for neighbour in neighbours {
                self.evict(slots, index, neighbour, effort);
            }
        }
    }

    /// Evicts an object that nobody holds. Returns the free extent that it became part of.
    fn evict(
        &mut self,
        slots: &Slots,
        index: &Index,
        slot: SlotId,
        effort: &mut Effort,
    ) -> Option<SlotId> {
        let left = index.leave(slots, slot, |record| {
            let free = |state: State| (state.holds() == 0).then(|| state.with_kind(Kind::Removed));
            record.change(free).is_ok()
        });
        if !left {
            return None;
        }
        effort.victims += 1;
        effort.evicted_units += u64::from(self.extents.units_of(slots, slot));
        let hash = index.hash(&slots[slot].id());
        let tenant = self.tenants.at_mut(slots[slot].state().tenant());
        tenant.order.remember(slots, slot, hash);
        tenant.evicted += 1;
        self.population.evicted += 1;
        self.population.evicted_bytes += u64::from(slots[slot].measure.get());
        self.forget(slots, slot);
        Some(self.extents.free(slots, slot))
    }

    /// Takes an object that left the index out of its list and the population.
    fn forget(&mut self, slots: &Slots, slot: SlotId) {
        let units = self.extents.units_of(slots, slot);
        let bytes = u64::from(slots[slot].measure.get());
        let tenant = self.tenants.at_mut(slots[slot].state().tenant());
        tenant.order.unlink(slots, slot, units);
        tenant.objects -= 1;
        tenant.bytes -= bytes;
        if tenant.objects == 0 {
            tenant.order = Order::new(); // What it remembers may be large, and is of no use.
        }
        self.population.objects -= 1;
        self.population.bytes -= bytes;
    }

    /// The neighbours of a free extent whose eviction makes it hold `need`; none if something that
    /// stays is in the way on both sides. A plan that is too long is returned unfinished: the
    /// next one goes on from the hole that it leaves.
    fn plan_widening(
        &self,
        slots: &Slots,
        need: Need,
        hole: SlotId,
        may_leave: impl Fn(TenantId) -> bool,
    ) -> Option<Vec<SlotId>> {
        let worth = |slot: SlotId| {
            let worth = worth(slots, slot, &may_leave)?;
            if worth == 0 {
                return Some((0, slot)); // Free: nobody's.
            }
            let state = slots[slot].state();
            let cheapest = self.tenants.at(state.tenant()).order.cheapest();
            Some((worth << state.class().steps_above(cheapest), slot))
        };
        let wanted = u64::from(need.units) + u64::from(need.align - 1);
        let mut span = u64::from(self.extents.units_of(slots, hole));
        let (mut low, mut high) = (slots[hole].before.get(), slots[hole].after.get());
        let mut plan = Vec::new();
        while span < wanted && plan.len() < WIDEN_STEPS {
            let below = low.some().and_then(worth);
            let above = high.some().and_then(worth);
            let take_below = match (below, above) {
                (None, None) => return None,
                (Some(below), Some(above)) => below.0 < above.0,
                (below, _) => below.is_some(),
            };
            let slot = if take_below { low } else { high };
            match take_below {
                true => low = slots[slot].before.get(),
                false => high = slots[slot].after.get(),
            }
            span += u64::from(self.extents.units_of(slots, slot));
            if slots[slot].kind() == Kind::Stored {
                plan.push(slot);
            }
        }
        Some(plan)
    }
}

impl Effort {
    fn is_spent(&self, need: Need) -> bool {
        self.evicted_units >= EVICT_FACTOR * u64::from(need.units) && self.victims >= EVICT_VICTIMS
    }
}

/// What is lost when the extent is given up, whatever it costs to compute; none if it cannot be.
fn worth(slots: &Slots, slot: SlotId, may_leave: &impl Fn(TenantId) -> bool) -> Option<u64> {
    let state = slots[slot].state();
    match state.kind() {
        Kind::Free => Some(0),
        Kind::Stored if state.holds() == 0 && may_leave(state.tenant()) => {
            let proven = u64::from(state.queue() == Queue::Proven);
            Some(1 + 2 * proven + u64::from(state.is_touched()))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests;
