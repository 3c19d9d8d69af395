//! A promise leaves a token to compute, parks the request, and is not repeated after it was broken.

use tessera_lifecycle::scheduler::LookupAnswer;

use crate::request::Request;

pub(crate) fn check(request: &Request, local: u64, external: u64, answer: LookupAnswer) {
    let name = &request.name;
    assert_eq!(
        answer.parks(),
        external > 0,
        "{name}: others may share what is not loaded yet"
    );
    assert!(
        local + external < request.text.len(),
        "{name}: the last token must be computed"
    );
    assert!(
        external == 0 || !request.failed_before,
        "{name}: a hit that failed was offered again"
    );
}
