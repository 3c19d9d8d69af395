//! Both engines asked at once: what they get, whose answer counts, and what ends whom.

use serde_json::{Value, json};
use tessera_proxy::{Limits, Mode, Passes, Proxy, ProxyConfig, StartError};

use crate::engine::{FakeEngine, Heard};
use crate::world::{World, limits};

fn asked() -> Value {
    json!({"prompt": [1, 2, 3], "max_tokens": 9, "n": 2, "stream": true})
}

fn with_pass(pass: &str) -> Value {
    let mut body = asked();
    body["kv_transfer_params"] = json!({"do_remote_prefill": true, "tessera_pass": pass});
    body
}

/// What both engines of a pair hear of a request before either has said anything.
async fn heard(world: &mut World) -> (Heard, Heard) {
    let prefill = world.prefill[0].next().await;
    (prefill, world.decode[0].next().await)
}

#[tokio::test]
async fn both_are_asked_at_once_under_one_pass_and_decode_answers() {
    let mut world = World::writing(1, 1, limits()).await;
    let at = world.prefill[0].url().replace("http://", "");
    for number in [1, 2] {
        let headers = "x-request-id: job-1\r\nauthorization: Bearer key\r\n";
        let line = "POST /v1/completions";
        let mut client = world.send(line, headers, &asked().to_string()).await;
        let (prefill, mut decode) = heard(&mut world).await;
        let pass = format!("pass {number} to {at}");
        let role = json!({
            "do_remote_decode": true, "do_remote_prefill": false, "tessera_pass": pass,
        });
        assert_eq!(
            prefill.body,
            json!({
                "prompt": [1, 2, 3], "max_tokens": 1, "stream": false, "kv_transfer_params": role,
            })
        );
        assert_eq!(decode.body, with_pass(&pass));
        for head in [&prefill.head, &decode.head] {
            assert!(head.contains("x-request-id: job-1"), "{head}");
            assert!(head.contains("authorization: bearer key"), "{head}");
        }
        prefill.answer(200, &json!({"choices": ["no use"]})).await;
        decode.begin_events().await;
        for token in ["one", "two"] {
            decode.event(token).await;
            client.until(token).await;
        }
        decode.end_events().await;
        let answer = client.whole().await;
        assert_eq!((answer.status, answer.is_ended()), (200, true));
        assert!(!answer.body.contains("no use"), "{}", answer.body);
    }
    world.until("tessera_proxy_handovers_total", "2").await;
    world.until("tessera_proxy_requests", "0").await;
    assert_eq!(world.metric("tessera_proxy_retries_total").await, "0");
}

#[tokio::test]
async fn decode_is_not_left_to_wait_for_prefill_that_has_failed() {
    let mut world = World::writing(1, 1, limits()).await;
    for status in [Some(500), Some(429), Some(302), None] {
        let client = world.ask(&asked()).await;
        let (prefill, waiting) = heard(&mut world).await;
        match status {
            Some(status) => prefill.answer(status, &json!({})).await,
            None => drop(prefill),
        }
        waiting.gone().await;
        let decode = world.decode[0].next().await;
        assert_eq!(decode.body, asked(), "{status:?}: it computes");
        decode.answer(200, &json!({})).await;
        assert_eq!(client.whole().await.status, 200);
    }
    assert_eq!(world.metric("tessera_proxy_handovers_total").await, "0");
    world
        .until("tessera_proxy_without_handover_total", "4")
        .await;
}

#[tokio::test]
async fn another_prefill_engine_is_asked_under_a_pass_of_its_own() {
    let mut world = World::writing(2, 1, limits()).await;
    let client = world.ask(&asked()).await;
    let (failing, other) = first_of(&mut world.prefill).await;
    let (failing_at, other_at) = (at(&failing.body), other.url().replace("http://", ""));
    assert_ne!(failing_at, other_at);
    let waiting = world.decode[0].next().await;
    drop(failing);
    waiting.gone().await;
    let prefill = other.next().await;
    assert_eq!(at(&prefill.body), other_at);
    let decode = world.decode[0].next().await;
    assert_eq!(decode.body, with_pass(&format!("pass 2 to {other_at}")));
    prefill.answer(200, &json!({})).await;
    decode.answer(200, &json!({})).await;
    assert_eq!(client.whole().await.status, 200);
    assert_eq!(world.metric("tessera_proxy_retries_total").await, "1");
    assert_eq!(world.metric("tessera_proxy_handovers_total").await, "1");
}

#[tokio::test]
async fn no_more_prefill_engines_are_asked_than_a_leg_has_tries() {
    let limits = Limits {
        attempts: 1,
        ..limits()
    };
    let mut world = World::writing(2, 1, limits).await;
    let client = world.ask(&asked()).await;
    let (failing, other) = first_of(&mut world.prefill).await;
    drop(failing);
    world.decode[0].next().await.gone().await;
    let decode = world.decode[0].next().await;
    assert_eq!(decode.body, asked());
    assert!(!other.was_asked());
    decode.answer(200, &json!({})).await;
    assert_eq!(client.whole().await.status, 200);
}

/// The inbox that a leg's pass is for.
fn at(body: &Value) -> String {
    let pass = body["kv_transfer_params"]["tessera_pass"].as_str();
    let (_, inbox) = pass
        .and_then(|pass| pass.split_once(" to "))
        .expect("a pass");
    inbox.to_owned()
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
async fn what_prefill_says_of_the_clients_mistake_is_the_answer_and_ends_decode() {
    let mut world = World::writing(1, 1, limits()).await;
    let client = world.ask(&asked()).await;
    let (prefill, waiting) = heard(&mut world).await;
    let mistake = json!({"error": "the prompt is too long"});
    prefill.answer(400, &mistake).await;
    waiting.gone().await;
    let answer = client.whole().await;
    assert_eq!(answer.status, 400);
    assert!(answer.body.contains("too long"), "{}", answer.body);
    assert!(!world.decode[0].was_asked());
}

#[tokio::test]
async fn a_client_that_goes_ends_both_legs_before_and_in_the_answer() {
    let mut world = World::writing(1, 1, limits()).await;
    for begun in [false, true] {
        let mut client = world.ask(&asked()).await;
        let (prefill, mut decode) = heard(&mut world).await;
        if begun {
            decode.begin_events().await;
            decode.event("one").await;
            client.until("one").await;
        }
        drop(client);
        prefill.gone().await;
        decode.gone().await;
    }
    world
        .until(r#"tessera_proxy_requests_total{outcome="gone"}"#, "2")
        .await;
    world.until("tessera_proxy_requests", "0").await;
}

#[tokio::test]
async fn decode_that_fails_before_a_byte_is_followed_by_another_under_the_same_pass() {
    let mut world = World::writing(1, 2, limits()).await;
    let client = world.ask(&asked()).await;
    let prefill = world.prefill[0].next().await;
    let (failing, other) = first_of(&mut world.decode).await;
    let body = failing.body.clone();
    failing.answer(503, &json!({})).await;
    let mut decode = other.next().await;
    assert_eq!(decode.body, body);
    assert!(!world.prefill[0].was_asked(), "it has the request already");
    prefill.answer(200, &json!({})).await;
    decode.begin_events().await;
    decode.event("one").await;
    decode.end_events().await;
    assert!(client.whole().await.is_ended());
    world.until("tessera_proxy_handovers_total", "1").await;
}

#[tokio::test]
async fn what_prefill_does_when_decode_answers_changes_nothing() {
    let mut world = World::writing(1, 1, limits()).await;
    for fails in [false, true] {
        let mut client = world.ask(&asked()).await;
        let (prefill, mut decode) = heard(&mut world).await;
        decode.begin_events().await;
        decode.event("one").await;
        client.until("one").await;
        let prefill = if fails {
            prefill.answer(500, &json!({})).await;
            None
        } else {
            Some(prefill)
        };
        decode.event("two").await;
        client.until("two").await;
        assert!(prefill.as_ref().is_none_or(Heard::is_awaited));
        decode.end_events().await;
        assert!(client.whole().await.is_ended());
        // What it would still compute is of no use to anybody.
        if let Some(prefill) = prefill {
            prefill.gone().await;
        }
        assert!(!world.decode[0].was_asked());
    }
}

#[tokio::test]
async fn without_a_prefill_engine_or_a_pass_decode_computes() {
    let mut world = World::writing(1, 1, limits()).await;
    let several = json!({"prompt": ["a", "b"]});
    let client = world.ask(&several).await;
    let decode = world.decode[0].next().await;
    assert_eq!(decode.body, several);
    decode.answer(200, &json!({})).await;
    assert_eq!(client.whole().await.status, 200);
    world.prefill[0].set_well(false);
    let at = world.prefill[0].url().replace("http://", "");
    let health = format!("tessera_proxy_engine_healthy{{role=\"prefill\",engine=\"{at}\"}}");
    world.until(&health, "0").await;
    for mut world in [world, World::without_passes().await] {
        let client = world.ask(&asked()).await;
        let decode = world.decode[0].next().await;
        assert_eq!(decode.body, asked());
        decode.answer(200, &json!({})).await;
        assert_eq!(client.whole().await.status, 200);
        assert!(!world.prefill[0].was_asked());
    }
}

#[tokio::test]
async fn a_proxy_that_does_not_know_every_inbox_does_not_start() {
    let engine = FakeEngine::start().await;
    let writes = || Mode::Write(Passes::new(|_| Ok(String::new())));
    for (mode, inboxes, said) in [
        (writes(), vec![], "1 prefill engines and 0 inboxes"),
        (
            writes(),
            vec![engine.inbox(); 2],
            "give --inbox HOST:PORT once for each --prefill",
        ),
        (
            Mode::Read,
            vec![engine.inbox()],
            "give --mode write, or no --inbox",
        ),
    ] {
        let config = ProxyConfig {
            listen: "127.0.0.1:0".parse().expect("an address"),
            mode,
            prefill: vec![engine.url().parse().expect("an address")],
            inboxes,
            decode: vec![engine.url().parse().expect("an address")],
            limits: limits(),
        };
        let refused: Result<_, StartError> = Proxy::start(config).await;
        let refused = refused.expect_err("it does not start").to_string();
        assert!(refused.contains(said), "{refused}");
    }
}
