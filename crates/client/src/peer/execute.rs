//! Carries out what the machine asks for.
//!
//! Called under the lock of the core, after every mutation. The invariants: nothing here waits;
//! each command is answered as it says, at once or by a task; a fence is reported only when the
//! connection with the peer is over, whichever of its tasks was the last.

use std::sync::Arc;

use tessera_lifecycle::peer::{
    Drain, FenceId, Frame, Move, PeerCommand, PeerEvent, PeerFailure, TransferId,
};
use tessera_proto::Incarnation;
use tessera_transport::FenceSide;

use super::core::{Core, State, Stopped};
use super::dial;
use crate::driver::Fences;
use crate::latch::Latch;

impl Core {
    /// All that follows from a mutation: verdicts, commands, and the news that these bring.
    pub(super) fn settle(self: &Arc<Self>, state: &mut State) {
        loop {
            let now = self.clock.now();
            // A failure that a step waits for changes nothing here: it is raised where the step
            // asks for results, and not before.
            let _ = state.root.collect(now);
            while let Some(command) = state.root.poll_command() {
                self.execute(state, command);
            }
            let event = state.events.pop_front();
            let Some(event) = event.filter(|_| state.stopped.is_none()) else {
                break;
            };
            state.root.handle_event(now, event);
        }
        self.alarm.notify_one();
    }

    fn execute(self: &Arc<Self>, state: &mut State, command: PeerCommand) {
        match command {
            PeerCommand::Connect(peer) => self.connect(state, peer),
            PeerCommand::Send(frame) => self.say(state, frame),
            PeerCommand::Move(order) => post(state, order),
            PeerCommand::Fence { peer, fence, .. } => self.fence(state, peer, fence),
            PeerCommand::FenceDevice(transfer) => self.fence_device(state, transfer),
            PeerCommand::Stop(why) => {
                tracing::error!(%why, "the worker stops: block memory may be touched for ever");
                self.halt(state, Stopped::Machine(why));
            }
        }
    }

    fn connect(self: &Arc<Self>, state: &mut State, peer: Incarnation) {
        let stop = Latch::default();
        state.next_dial += 1;
        let dial = (state.next_dial, stop.clone());
        if let Some((_, old)) = state.dials.insert(peer, dial) {
            old.set();
        }
        let address = state.roads.get(&peer).map(|road| road.address.clone());
        let trying = dial::run(Arc::clone(self), peer, address, stop, state.next_dial);
        self.spawn(trying);
    }

    /// A message for a connection that is gone is lost, as its receiver is.
    fn say(&self, state: &State, frame: Frame) {
        let link = state.links.get(&frame.to);
        if let Some(link) = link.filter(|link| link.connection == frame.connection) {
            link.say(frame, self.bounds.control_frames);
        }
    }

    /// Both kinds of fence are one over sockets: the connection with the peer is closed, and both
    /// of its tasks have ended, so that neither side's bytes move through this process any more.
    fn fence(self: &Arc<Self>, state: &mut State, peer: Incarnation, fence: FenceId) {
        state.fences.insert(peer, fence);
        if let Some((_, dial)) = state.dials.remove(&peer) {
            dial.set();
        }
        let link = state.links.get(&peer).cloned();
        if let Some(link) = &link {
            link.close();
        }
        let core = Arc::clone(self);
        self.spawn(async move {
            if let Some(link) = link {
                link.over.waited().await;
            }
            core.fenced(peer, fence);
        });
    }

    /// Proves that what was written shows, and gives back what was lent until then.
    fn fence_device(self: &Arc<Self>, state: &mut State, transfer: TransferId) {
        let devices = self.memory.layout.devices();
        let fences = Fences::ask(devices, FenceSide::After);
        if fences.are_over() {
            state.written.remove(&transfer);
            state.events.push_back(PeerEvent::DeviceFenced(transfer));
            return;
        }
        let core = Arc::clone(self);
        self.spawn(async move {
            let (devices, limit) = (core.memory.layout.devices(), core.memory.proof_timeout);
            let failed = || core.report([PeerEvent::DeviceFailed(transfer)]);
            let proof = fences.prove(devices, FenceSide::After, limit, failed);
            match proof.await {
                Ok(()) => {
                    core.with(|state| state.written.remove(&transfer));
                    core.report([PeerEvent::DeviceFenced(transfer)]);
                }
                Err(fault) => core.stop(fault),
            }
        });
    }
}

/// Posts a part on the connection that it is for. If that is gone nothing is posted, and the part
/// has failed without having moved.
fn post(state: &mut State, order: Move) {
    let (transfer, at, connection) = (order.transfer, order.at, order.connection);
    let link = state.links.get(&order.peer);
    let link = link.filter(|link| link.connection == connection);
    if link.is_some_and(|link| link.post(order)) {
        return;
    }
    let failure = PeerFailure::Transport;
    state.events.push_back(PeerEvent::PartFailed {
        transfer,
        at,
        failure,
    });
    let drain = Drain::Clean;
    state.events.push_back(PeerEvent::PartDrained {
        transfer,
        at,
        drain,
    });
}
