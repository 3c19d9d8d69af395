//! Where requests go, in which form, and what comes back.

use serde_json::{Value, json};

use crate::engine::FakeEngine;
use crate::world::{World, handover, limits, soon};

fn asked() -> Value {
    json!({"model": "m", "prompt": [1, 2, 3], "max_tokens": 9})
}

#[tokio::test]
async fn a_prompt_goes_to_prefill_and_what_it_answers_goes_on_to_decode() {
    let mut world = World::pair().await;
    let headers = "x-request-id: job-1\r\nauthorization: Bearer key\r\ncookie: secret\r\n";
    let client = world
        .send("POST /v1/chat/completions", headers, &asked().to_string())
        .await;
    let of_prefill = world.prefill[0].next().await;
    assert_eq!(of_prefill.body["max_tokens"], 1);
    assert_eq!(
        of_prefill.body["kv_transfer_params"]["do_remote_decode"],
        true
    );
    let heads = [of_prefill.head.clone()];
    of_prefill
        .answer(
            200,
            &json!({"choices": [], "kv_transfer_params": handover()}),
        )
        .await;
    let of_decode = world.decode[0].next().await;
    let mut body = asked();
    body["kv_transfer_params"] = handover();
    assert_eq!(of_decode.body, body);
    for head in heads.iter().chain([&of_decode.head]) {
        assert!(head.starts_with("POST /v1/chat/completions "), "{head}");
        assert!(head.contains("x-request-id: job-1"), "{head}");
        assert!(head.contains("authorization: bearer key"), "{head}");
        assert!(!head.contains("cookie"), "{head}");
    }
    of_decode.answer(200, &json!({"choices": ["it"]})).await;
    let answer = client.whole().await;
    assert_eq!(answer.status, 200);
    assert!(
        answer.head.contains("x-request-id: job-1"),
        "{}",
        answer.head
    );
    assert!(
        answer.body.contains(r#"{"choices":["it"]}"#),
        "{}",
        answer.body
    );
    world.until("tessera_proxy_handovers_total", "1").await;
    world.until("tessera_proxy_requests", "0").await;
}

#[tokio::test]
async fn events_reach_the_client_one_by_one() {
    let mut world = World::pair().await;
    let mut client = world.ask(&asked()).await;
    world.offer().await;
    let mut decode = world.decode[0].next().await;
    decode.begin_events().await;
    for token in ["one", "two", "three"] {
        // The next one is sent when the client has this one.
        decode.event(token).await;
        client.until(token).await;
    }
    decode.end_events().await;
    let answer = client.whole().await;
    assert!(answer.is_ended());
    assert!(answer.head.contains("text/event-stream"), "{}", answer.head);
    world
        .until(r#"tessera_proxy_requests_total{outcome="answered"}"#, "1")
        .await;
}

#[tokio::test]
async fn several_prompts_in_one_request_go_to_decode_alone() {
    let mut world = World::pair().await;
    let body = json!({"prompt": ["a", "b"]});
    let client = world.ask(&body).await;
    let decode = world.decode[0].next().await;
    assert_eq!(decode.body, body);
    decode.answer(200, &json!({})).await;
    assert_eq!(client.whole().await.status, 200);
    assert!(!world.prefill[0].was_asked());
    world
        .until("tessera_proxy_without_handover_total", "1")
        .await;
}

#[tokio::test]
async fn what_prefill_cannot_give_decode_computes() {
    let mut world = World::pair().await;
    for (status, said) in [
        (200, json!({"choices": []})),
        (200, json!({"kv_transfer_params": null})),
        (500, json!({"kv_transfer_params": handover()})),
        (429, json!({})),
    ] {
        let client = world.ask(&asked()).await;
        world.prefill[0].next().await.answer(status, &said).await;
        let decode = world.decode[0].next().await;
        assert_eq!(decode.body, asked(), "{status} {said}");
        decode.answer(200, &json!({})).await;
        assert_eq!(client.whole().await.status, 200);
    }
    assert_eq!(world.metric("tessera_proxy_handovers_total").await, "0");
}

#[tokio::test]
async fn prefill_that_is_gone_costs_a_computation() {
    let mut world = World::pair().await;
    world.prefill.remove(0).end().await;
    let client = world.ask(&asked()).await;
    let decode = world.decode[0].next().await;
    assert_eq!(decode.body, asked());
    decode.answer(200, &json!({})).await;
    assert_eq!(client.whole().await.status, 200);
}

#[tokio::test]
async fn what_prefill_says_of_the_clients_mistake_is_the_answer() {
    let mut world = World::pair().await;
    let client = world.ask(&asked()).await;
    let mistake = json!({"error": "the prompt is too long"});
    world.prefill[0].next().await.answer(400, &mistake).await;
    let answer = client.whole().await;
    assert_eq!(answer.status, 400);
    assert!(answer.body.contains("too long"), "{}", answer.body);
    assert!(!world.decode[0].was_asked());
}

#[tokio::test]
async fn models_are_those_of_a_decode_engine() {
    let mut world = World::pair().await;
    let asking = world
        .send("GET /v1/models", "authorization: Bearer key\r\n", "")
        .await;
    let heard = world.decode[0].next().await;
    assert!(heard.head.starts_with("GET /v1/models "), "{}", heard.head);
    assert!(
        heard.head.contains("authorization: bearer key"),
        "{}",
        heard.head
    );
    heard.answer(200, &json!({"data": [{"id": "m"}]})).await;
    let answer = asking.whole().await;
    assert!(
        answer.body.contains(r#"{"data":[{"id":"m"}]}"#),
        "{}",
        answer.body
    );
}

#[tokio::test]
async fn an_engine_that_is_ill_is_asked_nothing_until_it_is_well() {
    let mut world = World::start(1, 2, limits()).await;
    let healthy = |engine: &FakeEngine| {
        let at = engine.url().replace("http://", "");
        format!("tessera_proxy_engine_healthy{{role=\"decode\",engine=\"{at}\"}}")
    };
    let ill = healthy(&world.decode[0]);
    world.decode[0].set_well(false);
    world.until(&ill, "0").await;
    for _ in 0..4 {
        let client = world.ask(&asked()).await;
        world.offer().await;
        world.decode[1].next().await.answer(200, &json!({})).await;
        assert_eq!(client.whole().await.status, 200);
    }
    assert!(!world.decode[0].was_asked());
    world.decode[0].set_well(true);
    world.until(&ill, "1").await;
    world.decode[1].set_well(false);
    world.until(&healthy(&world.decode[1]), "0").await;
    let client = world.ask(&asked()).await;
    world.offer().await;
    world.decode[0].next().await.answer(200, &json!({})).await;
    assert_eq!(client.whole().await.status, 200);
}

#[tokio::test]
async fn without_a_decode_engine_there_is_no_health_and_no_answer() {
    let mut world = World::pair().await;
    let well = world.get("/health").await;
    assert_eq!(well.status, 200);
    assert!(
        well.body.contains(r#""decode":{"engines":1,"healthy":1}"#),
        "{}",
        well.body
    );
    world.decode[0].set_well(false);
    soon(async { while world.get("/health").await.status != 503 {} }).await;
    let client = world.ask(&asked()).await;
    world.offer().await;
    let answer = client.whole().await;
    assert_eq!(answer.status, 503);
    assert!(answer.head.contains("retry-after: 1"), "{}", answer.head);
    assert!(
        answer.body.contains("no decode engine is healthy"),
        "{}",
        answer.body
    );
}
