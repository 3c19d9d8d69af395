//! The cells of the table of completions in WRITE, one test for each order and number of passes.

use super::cells::{
    BACK, FORTH, all_done, failed_and_drained, failed_and_pending, pending_at_the_deadline,
    pending_past_the_deadline,
};
use crate::peer::Mode::Write;

#[test]
fn write_all_done_first_part_first_one_pass() {
    all_done(Write, FORTH, 1);
}

#[test]
fn write_all_done_first_part_first_repeated_passes() {
    all_done(Write, FORTH, 4);
}

#[test]
fn write_all_done_last_part_first_one_pass() {
    all_done(Write, BACK, 1);
}

#[test]
fn write_all_done_last_part_first_repeated_passes() {
    all_done(Write, BACK, 4);
}

#[test]
fn write_failed_and_pending_first_part_first_one_pass() {
    failed_and_pending(Write, FORTH, 1);
}

#[test]
fn write_failed_and_pending_first_part_first_repeated_passes() {
    failed_and_pending(Write, FORTH, 4);
}

#[test]
fn write_failed_and_pending_last_part_first_one_pass() {
    failed_and_pending(Write, BACK, 1);
}

#[test]
fn write_failed_and_pending_last_part_first_repeated_passes() {
    failed_and_pending(Write, BACK, 4);
}

#[test]
fn write_pending_at_the_deadline_first_part_first_one_pass() {
    pending_at_the_deadline(Write, FORTH, 1);
}

#[test]
fn write_pending_at_the_deadline_first_part_first_repeated_passes() {
    pending_at_the_deadline(Write, FORTH, 4);
}

#[test]
fn write_pending_at_the_deadline_last_part_first_one_pass() {
    pending_at_the_deadline(Write, BACK, 1);
}

#[test]
fn write_pending_at_the_deadline_last_part_first_repeated_passes() {
    pending_at_the_deadline(Write, BACK, 4);
}

#[test]
fn write_pending_past_the_deadline_first_part_first_one_pass() {
    pending_past_the_deadline(Write, FORTH, 1);
}

#[test]
fn write_pending_past_the_deadline_first_part_first_repeated_passes() {
    pending_past_the_deadline(Write, FORTH, 4);
}

#[test]
fn write_pending_past_the_deadline_last_part_first_one_pass() {
    pending_past_the_deadline(Write, BACK, 1);
}

#[test]
fn write_pending_past_the_deadline_last_part_first_repeated_passes() {
    pending_past_the_deadline(Write, BACK, 4);
}

#[test]
fn write_failed_and_drained_first_part_first_one_pass() {
    failed_and_drained(Write, FORTH, 1);
}

#[test]
fn write_failed_and_drained_first_part_first_repeated_passes() {
    failed_and_drained(Write, FORTH, 4);
}

#[test]
fn write_failed_and_drained_last_part_first_one_pass() {
    failed_and_drained(Write, BACK, 1);
}

#[test]
fn write_failed_and_drained_last_part_first_repeated_passes() {
    failed_and_drained(Write, BACK, 4);
}
