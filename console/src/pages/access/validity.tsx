import { Trans } from '@lingui/react/macro';
import type { ReactNode } from 'react';
import { formatTime } from '../../format';
import { StateBadge } from '../../ui/state-badge';

interface Validity {
  enabled?: boolean;
  expires_at_ms?: number | null;
}

/** Whether a key or a code can be used now. */
export function ValidityBadge({ of, usedUp }: { of: Validity; usedUp?: ReactNode }) {
  if (of.enabled === false) {
    return (
      <StateBadge health="unknown">
        <Trans>not active</Trans>
      </StateBadge>
    );
  }
  if (usedUp) return <StateBadge health="unknown">{usedUp}</StateBadge>;
  if (of.expires_at_ms != null && of.expires_at_ms < Date.now()) {
    return (
      <StateBadge health="warning">
        <Trans>expired</Trans>
      </StateBadge>
    );
  }
  return (
    <StateBadge health="good">
      <Trans>active</Trans>
    </StateBadge>
  );
}

export function ValidUntil({ of }: { of: Validity }) {
  return of.expires_at_ms == null ? <Trans>for ever</Trans> : <>{formatTime(of.expires_at_ms)}</>;
}
