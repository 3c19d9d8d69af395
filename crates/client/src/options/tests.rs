//! What the options accept, what they refuse, and that the documentation says the same.

use std::path::Path;

use serde_json::json;

use super::{IoMode, NodeOption, OnLoadFailure, OptionError, Options, TABLE, markdown};

fn refusal(value: &serde_json::Value) -> String {
    Options::parse(value)
        .expect_err("it must be refused")
        .to_string()
}

#[test]
fn empty_options_are_the_documented_defaults() {
    let options = Options::default();
    assert_eq!(options.nodes, []);
    assert_eq!(options.chunk_tokens, None);
    assert_eq!(options.io, IoMode::Async);
    assert_eq!(options.on_load_failure, OnLoadFailure::Recompute);
    assert_eq!(options.staging_bytes, 256 << 20);
    assert!(options.load && options.save && options.self_test);
    assert_eq!(options.preempt_timeout.as_millis(), 1000);
    assert_eq!(options.proof_timeout.as_millis(), 120_000);
}

#[test]
fn every_documented_key_is_read() {
    for row in TABLE {
        let error = refusal(&json!({ row.key: { "no": "option has this type" } }));
        assert!(error.contains(row.key), "{error}");
        assert!(error.contains(&row.kind.describe()), "{error}");
    }
}

#[test]
fn values_are_read_as_written() {
    let options = Options::parse(&json!({
        "nodes": ["10.0.0.1:7421", {"address": "unix:/run/t.sock", "weight": 3}],
        "chunk_tokens": 256, "io": "serial", "on_load_failure": "engine", "staging": "1GiB",
        "local_ram": 67_108_864, "save": false, "tenant": "a", "lookup_timeout_ms": 7,
        "preempt_timeout_ms": 1, "proof_timeout_ms": 1000,
    }))
    .expect("they are valid");
    let node = |address: &str, weight| NodeOption {
        address: address.parse().unwrap(),
        weight,
    };
    assert_eq!(
        options.nodes,
        [node("10.0.0.1:7421", 1), node("unix:/run/t.sock", 3)]
    );
    assert_eq!(options.chunk_tokens, Some(256));
    assert_eq!(options.io, IoMode::Serial);
    assert_eq!(options.on_load_failure, OnLoadFailure::Engine);
    assert_eq!(
        (options.staging_bytes, options.local_ram_bytes),
        (1 << 30, 64 << 20)
    );
    assert_eq!(options.lookup_timeout.as_millis(), 7);
    assert_eq!(options.preempt_timeout.as_millis(), 1);
    assert_eq!(options.proof_timeout.as_millis(), 1000);
    assert!(!options.save);
}

#[test]
fn unknown_key_names_the_nearest_one() {
    assert_eq!(
        refusal(&json!({ "node": [] })),
        "unknown option \"node\" in kv_connector_extra_config; did you mean \"nodes\"?"
    );
    assert!(refusal(&json!({ "chunk_token": 1 })).contains("did you mean \"chunk_tokens\"?"));
    let far = refusal(&json!({ "qqq": 1 }));
    assert!(far.contains("the options are: nodes, tenant"), "{far}");
}

#[test]
fn l04_no_option_switches_a_fence_off() {
    for key in [
        "fence",
        "completion_fence",
        "skip_fence",
        "FENCES",
        "load_fence_ms",
    ] {
        for value in [json!(false), json!("off"), json!(0)] {
            let refused = refusal(&json!({ key: value }));
            assert!(refused.contains(key), "{refused}");
            assert!(refused.contains("cannot be changed"), "{refused}");
        }
    }
    let named = |row: &super::OptionDoc| row.key.contains("fence");
    assert!(!TABLE.iter().any(named), "no option touches a fence");
}

#[test]
fn wrong_types_and_ranges_name_the_right_ones() {
    let cases = [
        (
            json!({ "load": "yes" }),
            "option \"load\" must be true or false, got \"yes\"",
        ),
        (
            json!({ "load": 1 }),
            "option \"load\" must be true or false, got 1",
        ),
        (
            json!({ "max_loads": 0 }),
            "a whole number from 1 to 4096, got 0",
        ),
        (
            json!({ "max_loads": -1 }),
            "a whole number from 1 to 4096, got -1",
        ),
        (
            json!({ "max_loads": 1.5 }),
            "a whole number from 1 to 4096, got 1.5",
        ),
        (
            json!({ "max_loads": null }),
            "a whole number from 1 to 4096, got null",
        ),
        (
            json!({ "preempt_timeout_ms": 0 }),
            "option \"preempt_timeout_ms\" must be a whole number from 1 to 600000, got 0",
        ),
        (
            json!({ "proof_timeout_ms": 999 }),
            "option \"proof_timeout_ms\" must be a whole number from 1000 to 600000, got 999",
        ),
        (
            json!({ "io": "sync" }),
            "one of \"async\", \"serial\", got \"sync\"",
        ),
        (json!({ "staging": "1GB" }), "bytes from 1MiB to 1TiB"),
        (json!({ "staging": 5 }), "bytes from 1MiB to 1TiB"),
        (
            json!({ "staging": "99999999999999TiB" }),
            "bytes from 1MiB to 1TiB",
        ),
        (json!({ "nodes": "127.0.0.1:7421" }), "a list of"),
        (json!({ "nodes": ["127.0.0.1"] }), "a list of"),
        (json!({ "nodes": ["unix:relative"] }), "a list of"),
        (
            json!({ "nodes": [{"address": "a:1", "weight": 0}] }),
            "a list of",
        ),
        (
            json!({ "nodes": [{"adress": "a:1"}] }),
            "a node has \"address\" and \"weight\"",
        ),
        (
            json!({ "lease_ms": 200, "load_timeout_ms": 300 }),
            "a lease must outlast the load",
        ),
        (json!([]), "must be a JSON object, got []"),
    ];
    for (value, expected) in cases {
        let error = refusal(&value);
        assert!(error.contains(expected), "{value}: {error}");
    }
}

#[test]
fn a_place_to_listen_has_host_and_port() {
    let listen = |text: &str| Options::parse(&json!({ "peer_listen": text }));
    let parsed = |text: &str| listen(text).unwrap().peer_listen;
    assert_eq!(parsed(""), None);
    assert_eq!(parsed("10.0.0.1:70"), Some(("10.0.0.1".to_owned(), 70)));
    assert_eq!(parsed("[::1]:0"), Some(("[::1]".to_owned(), 0)));
    for wrong in ["127.0.0.1", ":1", "a:70000"] {
        let error = listen(wrong).unwrap_err().to_string();
        assert!(error.starts_with("option \"peer_listen\" must be \"host:port\""));
    }
    assert!(refusal(&json!({ "peer_key_file": "key" })).contains("an absolute path"));
}

#[test]
fn long_wrong_value_is_shortened_in_the_message() {
    let error = refusal(&json!({ "load": "x".repeat(5000) }));
    assert!(error.len() < 200, "{error}");
}

#[test]
fn options_inside_a_document_keep_their_message() {
    let error = serde_json::from_value::<Options>(json!({ "sav": true })).unwrap_err();
    assert!(
        error.to_string().contains("did you mean \"save\"?"),
        "{error}"
    );
    assert!(matches!(
        Options::parse(&json!(3)),
        Err(OptionError::NotAnObject { .. })
    ));
}

/// `TESSERA_BLESS=1` writes the page instead of comparing it.
#[test]
fn configuration_page_is_written_from_the_table() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/configuration.md");
    if std::env::var_os("TESSERA_BLESS").is_some() {
        std::fs::create_dir_all(path.parent().expect("it has a parent")).expect("docs/ exists");
        std::fs::write(&path, markdown()).expect("the page can be written");
    }
    let page = std::fs::read_to_string(&path).expect("docs/configuration.md exists");
    assert_eq!(
        page,
        markdown(),
        "run: TESSERA_BLESS=1 cargo test -p tessera-client"
    );
}

#[test]
fn a_node_named_twice_is_refused() {
    let twice = json!({"nodes": ["a:1", "b:1", {"address": "a:1", "weight": 2}]});
    let message = Options::parse(&twice).unwrap_err().to_string();
    assert!(message.contains("named once"), "{message}");
    assert!(message.contains("a:1"), "{message}");
}

#[test]
fn a_relative_folder_is_refused() {
    let message = Options::parse(&json!({"local_dir": "run/here"})).unwrap_err();
    assert!(message.to_string().contains("absolute"), "{message}");
    let absolute = Options::parse(&json!({"local_dir": "/run/here"})).unwrap();
    assert_eq!(absolute.local_dir, "/run/here");
}
