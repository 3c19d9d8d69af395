//! The engine's description is read strictly.

use super::engine::config;
use crate::driver::{EngineConfig, StartError};

fn document() -> serde_json::Value {
    serde_json::json!({
        "namespace": {
            "model": "m", "dtype": "float32", "weights": "00ff", "revision": "r",
            "layout_fingerprint": "ab".repeat(32),
        },
        "groups": [
            {"kind": "full", "block_tokens": 16, "replicated": {"tp": true}},
            {"kind": {"window": {"tokens": 512}}, "block_tokens": 16},
            {"kind": "state", "block_tokens": 16},
        ],
        "hash_tokens": 16,
        "topology": {"tp": 2},
        "rank": {"tp": 1, "pp": 0, "dcp": 0, "pcp": 0},
        "options": {"tenant": "t"},
    })
}

#[test]
fn a_whole_document_is_read() {
    let config = EngineConfig::from_json(&document().to_string()).unwrap();
    assert_eq!(config.namespace.weights, [0, 255]);
    assert_eq!((config.rank.tp, config.topology.pp), (1, 1));
    assert!(config.can_load && config.can_save && config.groups[0].replicated.tp);
    assert_eq!(config.shape().unwrap().chunk_tokens(), 16);
    assert_eq!(config.namespace().unwrap(), config.namespace().unwrap());
}

#[test]
fn what_is_unknown_missing_or_wrong_is_refused_by_name() {
    type Change = fn(&mut serde_json::Value);
    let cases: [(&str, Change); 7] = [
        ("colour", |json| json["colour"] = 1.into()),
        ("colour", |json| json["groups"][0]["colour"] = 1.into()),
        ("colour", |json| json["options"]["colour"] = 1.into()),
        ("dtype", |json| {
            json["namespace"].as_object_mut().unwrap().remove("dtype");
        }),
        ("64 hexadecimal digits", |json| {
            json["namespace"]["layout_fingerprint"] = "ab".into();
        }),
        ("hexadecimal", |json| {
            json["namespace"]["weights"] = "xyz".into();
        }),
        ("hash_tokens", |json| json["hash_tokens"] = 0.into()),
    ];
    for (word, change) in cases {
        let mut json = document();
        change(&mut json);
        let config = EngineConfig::from_json(&json.to_string());
        let error = config
            .and_then(|config| config.shape().map(|_| ()))
            .unwrap_err();
        assert!(error.to_string().contains(word), "{error}");
    }
}

#[test]
fn a_rank_outside_the_topology_is_refused() {
    let mut config = config("full", "async", 2);
    config.rank.tp = 2;
    let error = config.worker().unwrap_err();
    assert!(matches!(error, StartError::Rank { .. }), "{error}");
}

#[test]
fn a_lease_outlasts_a_lookup_and_a_load_whatever_the_options_say() {
    let mut config = config("full", "async", 1);
    config.options.lease = config.options.load_timeout;
    let scheduler = config.scheduler(1).unwrap();
    let least = scheduler.load_timeout_ms + scheduler.lookup_timeout_ms;
    assert!(u64::from(scheduler.lease_ms) > least);
}
