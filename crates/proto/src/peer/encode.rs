//! A frame as bytes.
//!
//! Called by the client for each frame that it sends. Lists are bounded by whoever made the
//! message; the decoder of the other side refuses longer ones.

use crate::codec::Writer;
use crate::peer::ids::{PartAttempt, PartId, TransferId};
use crate::peer::message::{Frame, LentPart, Message, Proof, Refusal};

/// The number of each message on the wire.
pub(super) mod number {
    pub(in crate::peer) const OFFER: u8 = 1;
    pub(in crate::peer) const CLAIM: u8 = 2;
    pub(in crate::peer) const GRANT: u8 = 3;
    pub(in crate::peer) const REFUSE: u8 = 4;
    pub(in crate::peer) const DATA_DONE: u8 = 5;
    pub(in crate::peer) const PART_ERR: u8 = 6;
    pub(in crate::peer) const ABORT: u8 = 7;
    pub(in crate::peer) const ABORT_ACK: u8 = 8;
    pub(in crate::peer) const RELEASE: u8 = 9;
    pub(in crate::peer) const RELEASE_ACK: u8 = 10;
    pub(in crate::peer) const FENCE_REQ: u8 = 11;
    pub(in crate::peer) const FENCE_DONE: u8 = 12;
    pub(in crate::peer) const OPEN_SET: u8 = 13;
    pub(in crate::peer) const NEVER_POSTED: u8 = 14;
    pub(in crate::peer) const PING: u8 = 15;
    pub(in crate::peer) const PONG: u8 = 16;
}

/// The number of a proof; 0 says that there is none.
pub(super) const fn proof_number(proof: Proof) -> u8 {
    match proof {
        Proof::NeverPosted => 1,
        Proof::Clean => 2,
        Proof::Fenced => 3,
    }
}

pub(super) const fn refusal_number(refusal: Refusal) -> u8 {
    match refusal {
        Refusal::Unknown => 1,
        Refusal::Stale => 2,
        Refusal::Used => 3,
        Refusal::Revoked => 4,
    }
}

impl Frame {
    /// Appends the frame.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let mut writer = Writer::new(out);
        writer.u128(self.from.0);
        writer.u128(self.to.0);
        writer.u64(self.connection.0);
        writer.u64(self.sequence);
        writer.u64(self.acknowledged);
        self.message.write(&mut writer);
    }
}

impl Message {
    fn write(&self, to: &mut Writer<'_>) {
        match self {
            Self::Offer {
                transfer,
                lease_ms,
                parts,
            } => {
                head(to, number::OFFER, *transfer);
                to.u64(*lease_ms);
                list(to, parts, lent);
            }
            Self::Claim { transfer, parts } => {
                head(to, number::CLAIM, *transfer);
                list(to, parts, lent);
            }
            Self::Grant { transfer, parts } => {
                head(to, number::GRANT, *transfer);
                list(to, parts, attempt);
            }
            Self::Refuse {
                transfer,
                parts,
                reason,
            } => {
                head(to, number::REFUSE, *transfer);
                to.u8(refusal_number(*reason));
                list(to, parts, attempt);
            }
            Self::Release { transfer, parts } => {
                head(to, number::RELEASE, *transfer);
                list(to, parts, |to, (at, proof)| {
                    attempt(to, at);
                    to.u8(proof_number(*proof));
                });
            }
            Self::Abort { transfer, parts } => names(to, number::ABORT, *transfer, parts),
            Self::ReleaseAck { transfer, parts } => {
                names(to, number::RELEASE_ACK, *transfer, parts);
            }
            Self::FenceReq { transfer, parts } => names(to, number::FENCE_REQ, *transfer, parts),
            Self::OpenSet { open } => entries(to, number::OPEN_SET, open),
            Self::NeverPosted { unknown } => entries(to, number::NEVER_POSTED, unknown),
            _ => self.write_single(to),
        }
    }

    /// Writes a message about one part, or about none.
    fn write_single(&self, to: &mut Writer<'_>) {
        match self {
            Self::DataDone { transfer, at } => {
                head(to, number::DATA_DONE, *transfer);
                attempt(to, at);
            }
            Self::FenceDone { transfer, at } => {
                head(to, number::FENCE_DONE, *transfer);
                attempt(to, at);
            }
            Self::PartErr {
                transfer,
                at,
                proof,
            } => {
                head(to, number::PART_ERR, *transfer);
                attempt(to, at);
                to.u8(proof.map_or(0, proof_number));
            }
            Self::AbortAck {
                transfer,
                at,
                proof,
            } => {
                head(to, number::ABORT_ACK, *transfer);
                attempt(to, at);
                to.u8(proof_number(*proof));
            }
            Self::Ping { digest } => {
                to.u8(number::PING);
                to.u64(*digest);
            }
            _ => to.u8(number::PONG),
        }
    }
}

fn head(to: &mut Writer<'_>, number: u8, transfer: TransferId) {
    to.u8(number);
    to.u128(transfer.0);
}

fn list<T>(to: &mut Writer<'_>, items: &[T], write: impl Fn(&mut Writer<'_>, &T)) {
    to.count(items.len());
    for item in items {
        write(to, item);
    }
}

fn part(to: &mut Writer<'_>, part: &PartId) {
    to.u16(part.source);
    to.u16(part.destination);
    to.u16(part.index);
}

fn attempt(to: &mut Writer<'_>, at: &PartAttempt) {
    part(to, &at.part);
    to.u32(at.attempt.0);
}

fn lent(to: &mut Writer<'_>, lent: &LentPart) {
    attempt(to, &lent.at);
    list(to, &lent.blocks, |to, of| {
        to.u16(of.group);
        to.u32(of.block);
        to.u64(of.generation.0);
    });
}

fn names(to: &mut Writer<'_>, number: u8, transfer: TransferId, parts: &[PartId]) {
    head(to, number, transfer);
    list(to, parts, part);
}

fn entries(to: &mut Writer<'_>, number: u8, entries: &[(TransferId, PartId)]) {
    to.u8(number);
    list(to, entries, |to, (transfer, id)| {
        to.u128(transfer.0);
        part(to, id);
    });
}
