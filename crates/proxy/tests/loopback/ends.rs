//! Engines that break off, and clients that go.

use std::time::Duration;

use serde_json::{Value, json};
use tessera_proxy::Limits;

use crate::engine::{FakeEngine, Heard};
use crate::world::{World, limits, soon};

fn asked() -> Value {
    json!({"prompt": "p", "stream": true})
}

#[tokio::test]
async fn a_client_that_goes_ends_the_leg_of_prefill() {
    let mut world = World::pair().await;
    let client = world.ask(&asked()).await;
    let prefill = world.prefill[0].next().await;
    drop(client);
    prefill.gone().await;
    world
        .until(r#"tessera_proxy_requests_total{outcome="gone"}"#, "1")
        .await;
    world.until("tessera_proxy_requests", "0").await;
    assert!(!world.decode[0].was_asked());
}

#[tokio::test]
async fn a_client_that_goes_ends_the_leg_of_decode_before_and_in_the_answer() {
    let mut world = World::pair().await;
    for begun in [false, true] {
        let mut client = world.ask(&asked()).await;
        world.offer().await;
        let mut decode = world.decode[0].next().await;
        if begun {
            decode.begin_events().await;
            decode.event("one").await;
            client.until("one").await;
        }
        drop(client);
        decode.gone().await;
    }
    world
        .until(r#"tessera_proxy_requests_total{outcome="gone"}"#, "2")
        .await;
    world.until("tessera_proxy_requests", "0").await;
}

#[tokio::test]
async fn an_engine_that_breaks_off_before_a_byte_is_followed_by_another() {
    let mut world = World::start(2, 2, limits()).await;
    let client = world.ask(&asked()).await;
    let (failing, other) = first_of(&mut world.prefill).await;
    drop(failing);
    let handover = json!({"kv_transfer_params": {"tessera_ticket": "t"}});
    other.next().await.answer(200, &handover).await;
    let (mut failing, other) = first_of(&mut world.decode).await;
    // The head of an answer is nothing yet.
    failing.begin_events().await;
    drop(failing);
    let mut heard = other.next().await;
    assert_eq!(heard.body["kv_transfer_params"]["tessera_ticket"], "t");
    heard.begin_events().await;
    heard.event("one").await;
    heard.end_events().await;
    let answer = client.whole().await;
    assert_eq!(answer.status, 200);
    assert!(
        answer.is_ended() && answer.body.contains("one"),
        "{}",
        answer.body
    );
    assert_eq!(world.metric("tessera_proxy_retries_total").await, "2");
}

/// What the engine of two heard whose turn it is, and the other one.
async fn first_of(engines: &mut [FakeEngine]) -> (Heard, &mut FakeEngine) {
    let [first, second] = engines else {
        panic!("two of them")
    };
    tokio::select! {
        heard = first.next() => (heard, second),
        heard = second.next() => (heard, first),
    }
}

#[tokio::test]
async fn an_answer_that_breaks_off_is_said_and_never_looks_whole() {
    let mut world = World::start(1, 2, limits()).await;
    let mut client = world.ask(&asked()).await;
    world.offer().await;
    let (mut failing, other) = first_of(&mut world.decode).await;
    failing.begin_events().await;
    failing.event("one").await;
    client.until("one").await;
    drop(failing);
    let answer = client.whole().await;
    assert!(!answer.is_ended(), "{}", answer.body);
    assert!(
        answer.body.contains("broke off before its end"),
        "{}",
        answer.body
    );
    assert!(!other.was_asked(), "the client has had a token");
    world
        .until(r#"tessera_proxy_requests_total{outcome="cut"}"#, "1")
        .await;
}

#[tokio::test]
async fn an_answer_that_is_no_stream_of_events_breaks_off_without_more_bytes() {
    let mut world = World::pair().await;
    let client = world.ask(&asked()).await;
    world.offer().await;
    let mut decode = world.decode[0].next().await;
    decode.begin("application/json").await;
    decode.event("half").await;
    drop(decode);
    let answer = client.whole().await;
    assert!(
        !answer.is_ended() && !answer.body.contains("error"),
        "{}",
        answer.body
    );
}

#[tokio::test]
async fn an_engine_that_cannot_now_is_followed_by_another() {
    let mut world = World::start(1, 2, limits()).await;
    for status in [500, 503, 429] {
        let client = world.ask(&asked()).await;
        world.offer().await;
        let (failing, other) = first_of(&mut world.decode).await;
        failing.answer(status, &json!({"error": "not now"})).await;
        other.next().await.answer(200, &json!({})).await;
        assert_eq!(client.whole().await.status, 200, "{status}");
    }
}

#[tokio::test]
async fn what_all_engines_refuse_is_the_answer() {
    let mut world = World::pair().await;
    let client = world.ask(&asked()).await;
    world.offer().await;
    let broken = json!({"error": "the engine is dead"});
    world.decode[0].next().await.answer(500, &broken).await;
    let answer = client.whole().await;
    assert_eq!(answer.status, 500);
    assert!(
        answer.body.contains("the engine is dead"),
        "{}",
        answer.body
    );
}

#[tokio::test]
async fn a_decode_engine_that_breaks_off_is_named() {
    let mut world = World::pair().await;
    let client = world.ask(&asked()).await;
    world.offer().await;
    drop(world.decode[0].next().await);
    let answer = client.whole().await;
    assert_eq!(answer.status, 502);
    let at = world.decode[0].url().replace("http://", "decode ");
    assert!(answer.body.contains(&at), "{}", answer.body);
}

#[tokio::test]
async fn an_engine_that_says_nothing_has_a_limit() {
    let limits = Limits {
        answer: Duration::from_secs(1),
        ..limits()
    };
    let mut world = World::start(1, 1, limits).await;
    // Prefill, and then decode.
    let client = world.ask(&asked()).await;
    let prefill = world.prefill[0].next().await;
    let decode = world.decode[0].next().await;
    let answer = client.whole().await;
    assert_eq!(answer.status, 504);
    prefill.gone().await;
    decode.gone().await;
}

#[tokio::test]
async fn silence_in_the_middle_of_an_answer_has_a_limit() {
    let limits = Limits {
        silence: Duration::from_millis(100),
        ..limits()
    };
    let mut world = World::start(1, 1, limits).await;
    let client = world.ask(&asked()).await;
    world.offer().await;
    let mut decode = world.decode[0].next().await;
    decode.begin_events().await;
    decode.event("one").await;
    let answer = client.whole().await;
    assert!(!answer.is_ended(), "{}", answer.body);
    assert!(
        answer.body.contains("said nothing for 100 ms"),
        "{}",
        answer.body
    );
    decode.gone().await;
}

#[tokio::test]
async fn a_proxy_that_stops_finishes_what_is_under_way() {
    let mut world = World::pair().await;
    let mut client = world.ask(&asked()).await;
    world.offer().await;
    let mut decode = world.decode[0].next().await;
    decode.begin_events().await;
    decode.event("one").await;
    client.until("one").await;
    let stopping = tokio::spawn(world.proxy.stop());
    decode.event("two").await;
    client.until("two").await;
    decode.end_events().await;
    assert!(client.whole().await.is_ended());
    soon(stopping).await.expect("it stops");
}

#[tokio::test]
async fn a_proxy_that_stops_waits_for_nobody_for_ever() {
    let limits = Limits {
        drain: Duration::from_millis(50),
        ..limits()
    };
    let mut world = World::start(1, 1, limits).await;
    let client = world.ask(&asked()).await;
    let prefill = world.prefill[0].next().await;
    soon(world.proxy.stop()).await;
    prefill.gone().await;
    drop(client);
}
