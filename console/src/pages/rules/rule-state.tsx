import { Trans } from '@lingui/react/macro';
import type { Schemas } from '../../api/client';
import { formatNumber } from '../../format';
import { StateBadge } from '../../ui/state-badge';

const recentMs = 60_000;

export function RuleStateBadge({ status }: { status: Schemas['RuleStatus'] }) {
  if (status.state === 'invalid')
    return (
      <StateBadge health="critical">
        <Trans>invalid</Trans>
      </StateBadge>
    );
  if (status.state === 'disabled')
    return (
      <StateBadge health="unknown">
        <Trans>disabled</Trans>
      </StateBadge>
    );
  if (status.last_error && status.last_error.at_ms > Date.now() - recentMs)
    return (
      <StateBadge health="warning">
        <Trans>failing</Trans>
      </StateBadge>
    );
  return (
    <StateBadge health="good">
      <Trans>running</Trans>
    </StateBadge>
  );
}

export function formatNanoseconds(ns: number | null | undefined): string {
  if (ns == null) return '–';
  if (ns < 1_000) return `${formatNumber(ns)} ns`;
  return ns < 1_000_000 ? `${formatNumber(ns / 1_000, 1)} µs` : `${formatNumber(ns / 1_000_000, 1)} ms`;
}
