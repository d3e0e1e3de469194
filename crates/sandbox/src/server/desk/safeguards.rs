//! `safeguard.*`

use std::time::Duration;

use codeagent_common::SafeguardConfig;
use codeagent_stdio::Outcome;
use codeagent_stdio::operations::{SafeguardConfigure, SafeguardConfirm, SafeguardSettings};

use super::{Desk, failure};

impl Desk {
    pub(crate) fn configure_safeguards(
        &self,
        request: SafeguardConfigure,
    ) -> Outcome<SafeguardSettings> {
        let session = self.session()?;
        let config = config(&request.0, session.options().safeguards);
        session.set_safeguards(config).map_err(failure)?;
        Ok(SafeguardSettings {
            delete_threshold: config.delete_threshold,
            overwrite_threshold_bytes: config.overwrite_threshold_bytes,
            rename_over_existing: config.rename_over_existing,
            timeout_seconds: Some(config.timeout.as_secs()),
        })
    }

    pub(crate) fn confirm(&self, request: SafeguardConfirm) -> Outcome<()> {
        self.hub.answer(&request.safeguard_id, request.action).map_err(failure)
    }
}

/// A question that is not mentioned is not asked; how long to wait for answers stays.
pub(super) fn config(settings: &SafeguardSettings, usual: SafeguardConfig) -> SafeguardConfig {
    SafeguardConfig {
        delete_threshold: settings.delete_threshold,
        overwrite_threshold_bytes: settings.overwrite_threshold_bytes,
        rename_over_existing: settings.rename_over_existing,
        timeout: settings.timeout_seconds.map_or(usual.timeout, Duration::from_secs),
        ..usual
    }
}
