//! The scheduler's calls for prompts that prefill writes: requests that came with a pass.
//!
//! Called by the Python module. The invariant: a request with a pass is named to the machine once
//! when it comes and once when it ends, so that neither engine waits for the other in vain.

use tessera_lifecycle::handover::{Offered, Refused};
use tessera_lifecycle::peer::TransferId;
use tessera_proto::ticket::Prompt;
use tessera_transport::Address;

use super::error::DriverError;
use super::remote::Remote;
use super::scheduler::{Finished, SchedulerDriver, Shared, unix_ms};

impl<R: Remote> SchedulerDriver<R> {
    /// Where this engine takes tickets of those that it writes to.
    #[must_use]
    pub const fn inbox(&self) -> Option<&Address> {
        self.inbox.as_ref()
    }

    /// Decode: a request has come with a pass. Refused, it computes.
    ///
    /// # Errors
    /// [`DriverError::Closed`].
    pub fn expect(
        &self,
        request: &str,
        pass: &str,
        prompt: Prompt<'_>,
    ) -> Result<Result<(), Refused>, DriverError> {
        let mut state = self.shared.open()?;
        let now = (self.shared.clock.now(), unix_ms());
        Ok(match &mut state.handover {
            Some(handover) => handover.expect(now, request, pass, prompt),
            None => Err(Refused::Role),
        })
    }

    /// Prefill: a request has come with a pass. Refused, it is computed for nobody.
    ///
    /// # Errors
    /// [`DriverError::Closed`].
    pub fn promise(&self, request: &str, pass: &str) -> Result<Result<(), Refused>, DriverError> {
        let inbox = self.inbox.is_some();
        let mut state = self.shared.open()?;
        Ok(match state.handover.as_mut().filter(|_| inbox) {
            Some(handover) => handover.promise(unix_ms(), request, pass),
            None => Err(Refused::Role),
        })
    }

    /// Prefill has finished with a request that came with a pass; `computed` is its prompt, if it
    /// has ended well. True if its blocks must be kept until it is reported as sent.
    ///
    /// # Errors
    /// [`DriverError::Closed`].
    pub fn computed(
        &self,
        request: &str,
        computed: Option<Finished<'_>>,
    ) -> Result<bool, DriverError> {
        let mut state = self.shared.open()?;
        state.root.finished(request);
        let mut kept = false;
        if let Some(handover) = &mut state.handover {
            handover.finished(request);
            let offered = computed.map(|of| Offered {
                request,
                transfer: TransferId(0),
                prompt: of.prompt,
                computed_tokens: of.computed_tokens,
                tables: of.tables,
            });
            kept = handover.computed(self.shared.clock.now(), request, offered.as_ref());
        }
        Shared::execute(&self.shared, &mut state);
        Ok(kept)
    }

    /// All workers have reported these requests as sent: their blocks are free.
    ///
    /// # Errors
    /// [`DriverError::Closed`].
    pub fn sent(&self, requests: &[&str]) -> Result<(), DriverError> {
        if let Some(handover) = &mut self.shared.open()?.handover {
            requests.iter().for_each(|request| handover.sent(request));
        }
        Ok(())
    }

    /// Whether blocks of finished requests are kept to be written. The engine must go on with its
    /// steps.
    #[must_use]
    pub fn is_sending(&self) -> bool {
        let state = self.shared.state.lock();
        state.handover.as_ref().is_some_and(|of| of.is_sending())
    }
}
