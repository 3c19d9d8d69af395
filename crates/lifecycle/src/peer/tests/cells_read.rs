//! The cells of the table of completions in READ, one test for each order and number of passes.

use super::cells::{
    BACK, FORTH, all_done, failed_and_drained, failed_and_pending, pending_at_the_deadline,
    pending_past_the_deadline,
};
use crate::peer::Mode::Read;

#[test]
fn read_all_done_first_part_first_one_pass() {
    all_done(Read, FORTH, 1);
}

#[test]
fn read_all_done_first_part_first_repeated_passes() {
    all_done(Read, FORTH, 4);
}

#[test]
fn read_all_done_last_part_first_one_pass() {
    all_done(Read, BACK, 1);
}

#[test]
fn read_all_done_last_part_first_repeated_passes() {
    all_done(Read, BACK, 4);
}

#[test]
fn read_failed_and_pending_first_part_first_one_pass() {
    failed_and_pending(Read, FORTH, 1);
}

#[test]
fn read_failed_and_pending_first_part_first_repeated_passes() {
    failed_and_pending(Read, FORTH, 4);
}

#[test]
fn read_failed_and_pending_last_part_first_one_pass() {
    failed_and_pending(Read, BACK, 1);
}

#[test]
fn read_failed_and_pending_last_part_first_repeated_passes() {
    failed_and_pending(Read, BACK, 4);
}

#[test]
fn read_pending_at_the_deadline_first_part_first_one_pass() {
    pending_at_the_deadline(Read, FORTH, 1);
}

#[test]
fn read_pending_at_the_deadline_first_part_first_repeated_passes() {
    pending_at_the_deadline(Read, FORTH, 4);
}

#[test]
fn read_pending_at_the_deadline_last_part_first_one_pass() {
    pending_at_the_deadline(Read, BACK, 1);
}

#[test]
fn read_pending_at_the_deadline_last_part_first_repeated_passes() {
    pending_at_the_deadline(Read, BACK, 4);
}

#[test]
fn read_pending_past_the_deadline_first_part_first_one_pass() {
    pending_past_the_deadline(Read, FORTH, 1);
}

#[test]
fn read_pending_past_the_deadline_first_part_first_repeated_passes() {
    pending_past_the_deadline(Read, FORTH, 4);
}

#[test]
fn read_pending_past_the_deadline_last_part_first_one_pass() {
    pending_past_the_deadline(Read, BACK, 1);
}

#[test]
fn read_pending_past_the_deadline_last_part_first_repeated_passes() {
    pending_past_the_deadline(Read, BACK, 4);
}

#[test]
fn read_failed_and_drained_first_part_first_one_pass() {
    failed_and_drained(Read, FORTH, 1);
}

#[test]
fn read_failed_and_drained_first_part_first_repeated_passes() {
    failed_and_drained(Read, FORTH, 4);
}

#[test]
fn read_failed_and_drained_last_part_first_one_pass() {
    failed_and_drained(Read, BACK, 1);
}

#[test]
fn read_failed_and_drained_last_part_first_repeated_passes() {
    failed_and_drained(Read, BACK, 4);
}
