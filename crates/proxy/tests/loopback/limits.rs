//! What a client may not do: none of it reaches an engine.

use std::time::Duration;

use serde_json::json;
use tessera_proxy::Limits;

use crate::world::{Client, World, limits};

async fn refused(world: &mut World, client: Client, status: u16, said: &str) {
    let answer = client.whole().await;
    assert_eq!(answer.status, status, "{}", answer.body);
    assert!(answer.body.contains(said), "{}", answer.body);
    assert!(answer.body.contains(r#""error""#), "{}", answer.body);
    assert!(!world.prefill[0].was_asked() && !world.decode[0].was_asked());
}

#[tokio::test]
async fn bodies_that_cannot_be_read_are_refused() {
    let limits = Limits {
        body_bytes: 100,
        ..limits()
    };
    let mut world = World::start(1, 1, limits).await;
    let line = "POST /v1/completions";
    let client = world.send(line, "", "no json").await;
    refused(&mut world, client, 400, "not a JSON object").await;
    let client = world.send(line, "", &"x".repeat(101)).await;
    refused(&mut world, client, 413, "longer than 100 bytes").await;
    let forged = json!({"kv_transfer_params": {"remote_host": "x"}}).to_string();
    let client = world.send(line, "", &forged).await;
    refused(&mut world, client, 400, "set by the proxy").await;
    let client = world.send("GET /nothing", "", "").await;
    refused(&mut world, client, 404, "nothing at /nothing").await;
    world
        .until(r#"tessera_proxy_requests_total{outcome="refused"}"#, "3")
        .await;
    world.until("tessera_proxy_requests", "0").await;
}

#[tokio::test]
async fn a_body_that_does_not_come_is_not_waited_for() {
    let limits = Limits {
        receive: Duration::from_millis(500),
        ..limits()
    };
    let mut world = World::start(1, 1, limits).await;
    let line = "POST /v1/completions";
    let mut client = world.connect().await;
    client
        .write(&format!(
            "{line} HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n{{"
        ))
        .await;
    refused(&mut world, client, 408, "did not come within 500 ms").await;
    world.until("tessera_proxy_requests", "0").await;
}

#[tokio::test]
async fn one_request_more_than_there_is_room_for_is_refused_until_there_is() {
    let limits = Limits {
        requests: 1,
        ..limits()
    };
    let mut world = World::start(1, 1, limits).await;
    let mut first = world.ask(&json!({})).await;
    world.offer().await;
    let mut decode = world.decode[0].next().await;
    decode.begin_events().await;
    decode.event("one").await;
    first.until("one").await;
    let second = world.ask(&json!({})).await;
    refused(&mut world, second, 429, "1 requests are under way").await;
    decode.end_events().await;
    assert!(first.whole().await.is_ended());
    world.until("tessera_proxy_requests", "0").await;
    let third = world.ask(&json!({})).await;
    world.offer().await;
    world.decode[0].next().await.answer(200, &json!({})).await;
    assert_eq!(third.whole().await.status, 200);
}

#[tokio::test]
async fn a_client_that_does_not_send_its_headers_is_left() {
    let limits = Limits {
        receive: Duration::from_millis(50),
        ..limits()
    };
    let world = World::start(1, 1, limits).await;
    let mut client = world.connect().await;
    client.write("POST /v1/completions HTTP/1.1\r\nhost:").await;
    client.ended().await;
}
