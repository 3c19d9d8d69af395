//! What a client asks for, and what either engine is asked for its sake. Pure.
//!
//! Called by `dispatch`. Everything that is not named here passes to both engines as it came.

use bytes::Bytes;
use serde_json::{Map, Value, json};

use crate::failure::Failure;

/// Where a request and an answer carry what one engine tells the other.
const HANDOVER: &str = "kv_transfer_params";
/// What both legs bear of it that are asked at once.
const PASS: &str = "tessera_pass";

/// What is not asked of prefill: it computes the prompt, and its one token is thrown away.
const FOR_DECODE_ONLY: [&str; 6] = [
    "best_of",
    "max_completion_tokens",
    "min_tokens",
    "n",
    "stream_options",
    "use_beam_search",
];

/// The body of a completion, chat or not.
#[derive(Debug)]
pub(crate) struct Asked(Map<String, Value>);

/// By what decode gets a prompt from prefill: opaque here, and signed.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Handover(Map<String, Value>);

impl Asked {
    /// Reads a body. A client may not say itself what decode takes from whom.
    pub(crate) fn parse(body: &[u8]) -> Result<Self, Failure> {
        let asked: Map<String, Value> =
            serde_json::from_slice(body).map_err(|error| Failure::NoJson(error.to_string()))?;
        match asked.get(HANDOVER) {
            None | Some(Value::Null) => Ok(Self(asked)),
            Some(_) => Err(Failure::ForeignHandover),
        }
    }

    /// What prefill is asked; None if the request is of several prompts, of which an answer has
    /// room for one ticket only, and a pass admits one. `pass` is for who is asked at once with
    /// decode.
    pub(crate) fn of_prefill(&self, pass: Option<&str>) -> Option<Bytes> {
        if self.prompts() != 1 {
            return None;
        }
        let mut body = self.0.clone();
        body.retain(|name, _| !FOR_DECODE_ONLY.contains(&name.as_str()));
        body.insert("max_tokens".into(), 1.into());
        body.insert("stream".into(), false.into());
        let mut role = json!({"do_remote_decode": true, "do_remote_prefill": false});
        if let Some(pass) = pass {
            role[PASS] = pass.into();
        }
        body.insert(HANDOVER.into(), role);
        Some(text(&body))
    }

    /// What decode is asked.
    pub(crate) fn of_decode(&self, handover: Option<&Handover>) -> Bytes {
        let Some(Handover(handover)) = handover else {
            return text(&self.0);
        };
        let mut body = self.0.clone();
        body.insert(HANDOVER.into(), handover.clone().into());
        text(&body)
    }

    /// How many prompts: a list is several, unless it is one of tokens.
    fn prompts(&self) -> usize {
        match self.0.get("prompt") {
            Some(Value::Array(list)) if !list.iter().all(Value::is_number) => list.len(),
            _ => 1,
        }
    }
}

impl Handover {
    /// For decode, which is asked at once with prefill.
    pub(crate) fn of_pass(pass: &str) -> Self {
        let role = [("do_remote_prefill", true.into()), (PASS, pass.into())];
        Self(
            role.map(|(name, value)| (name.to_owned(), value))
                .into_iter()
                .collect(),
        )
    }

    /// What prefill's answer passes on, if it does.
    pub(crate) fn of_answer(answer: &[u8]) -> Option<Self> {
        let mut answer: Map<String, Value> = serde_json::from_slice(answer).ok()?;
        match answer.remove(HANDOVER) {
            Some(Value::Object(handover)) => Some(Self(handover)),
            _ => None,
        }
    }
}

fn text(body: &Map<String, Value>) -> Bytes {
    // Names are strings and values came from JSON: there is nothing that cannot be written.
    serde_json::to_vec(body).map_or_else(|_| Bytes::new(), Bytes::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(body: &Value) -> Asked {
        Asked::parse(body.to_string().as_bytes()).expect("a good body")
    }

    fn value(body: &Bytes) -> Value {
        serde_json::from_slice(body).expect("JSON")
    }

    #[test]
    fn prefill_is_asked_for_one_token_of_one_sample_and_decode_for_what_was_asked() {
        let body = json!({
            "model": "m", "prompt": "p", "max_tokens": 9, "max_completion_tokens": 9,
            "min_tokens": 5, "n": 3, "best_of": 4, "stream": true,
            "stream_options": {"include_usage": true}, "temperature": 0.5, "seed": 7,
        });
        let asked = asked(&body);
        let of_prefill = asked.of_prefill(None).expect("one prompt");
        assert_eq!(
            value(&of_prefill),
            json!({
                "model": "m", "prompt": "p", "max_tokens": 1, "stream": false, "temperature": 0.5,
                "seed": 7,
                "kv_transfer_params": {"do_remote_decode": true, "do_remote_prefill": false},
            })
        );
        assert_eq!(value(&asked.of_decode(None)), body);
    }

    #[test]
    fn what_prefill_answers_reaches_decode_whole() {
        let handover = json!({"do_remote_prefill": true, "tessera_ticket": "t", "new": [1, [2]]});
        let answer = json!({"choices": [], "kv_transfer_params": handover}).to_string();
        let found = Handover::of_answer(answer.as_bytes()).expect("a handover");
        let body = asked(&json!({"messages": []})).of_decode(Some(&found));
        assert_eq!(
            value(&body),
            json!({"messages": [], "kv_transfer_params": handover})
        );
        for none in ["", "{", "[]", "{}", r#"{"kv_transfer_params": null}"#] {
            assert_eq!(Handover::of_answer(none.as_bytes()), None, "{none}");
        }
    }

    #[test]
    fn two_that_are_asked_at_once_bear_one_pass_and_each_its_role() {
        let asked = asked(&json!({"prompt": "p", "n": 2}));
        let of_prefill = asked.of_prefill(Some("signed")).expect("one prompt");
        assert_eq!(
            value(&of_prefill),
            json!({
                "prompt": "p", "max_tokens": 1, "stream": false,
                "kv_transfer_params": {
                    "do_remote_decode": true, "do_remote_prefill": false, "tessera_pass": "signed",
                },
            })
        );
        let role = json!({"do_remote_prefill": true, "tessera_pass": "signed"});
        assert_eq!(
            value(&asked.of_decode(Some(&Handover::of_pass("signed")))),
            json!({"prompt": "p", "n": 2, "kv_transfer_params": role})
        );
    }

    #[test]
    fn only_one_prompt_goes_to_prefill() {
        for one in [json!("p"), json!([1, 2, 3]), json!(["p"]), json!([[1, 2]])] {
            assert!(
                asked(&json!({"prompt": one})).of_prefill(None).is_some(),
                "{one}"
            );
        }
        for several in [json!(["p", "q"]), json!([[1], [2]])] {
            assert!(
                asked(&json!({"prompt": several}))
                    .of_prefill(None)
                    .is_none(),
                "{several}"
            );
        }
        assert!(
            asked(&json!({"messages": [{}, {}]}))
                .of_prefill(None)
                .is_some()
        );
    }

    #[test]
    fn bodies_that_are_no_objects_or_bring_a_handover_are_refused() {
        for bad in ["", "[]", "7", "{\"a\":", "\u{0}"] {
            let refused = Asked::parse(bad.as_bytes());
            assert!(matches!(refused, Err(Failure::NoJson(_))), "{bad}");
        }
        let forged = json!({"prompt": "p", "kv_transfer_params": {"remote_host": "evil"}});
        let refused = Asked::parse(forged.to_string().as_bytes());
        assert!(matches!(refused, Err(Failure::ForeignHandover)));
        asked(&json!({"prompt": "p", "kv_transfer_params": null}));
    }
}
