import { Trans } from '@lingui/react/macro';
import type { Schemas } from '../../api/client';
import { StateBadge, type Health } from '../../ui/state-badge';

const sinkHealth: Record<string, Health> = {
  running: 'good',
  failing: 'critical',
  starting: 'unknown',
  disabled: 'unknown',
  no_connector: 'critical',
  invalid: 'critical',
};

export function SinkStateBadge({ status }: { status: Pick<Schemas['SinkStatus'], 'state'> }) {
  return (
    <StateBadge health={sinkHealth[status.state] ?? 'unknown'}>
      <StateName state={status.state} />
    </StateBadge>
  );
}

export function SourceStateBadge({ status }: { status: Schemas['SourceStatus'] }) {
  const isFailing = status.state === 'running' && status.failures > 0;
  return (
    <StateBadge health={isFailing ? 'warning' : (sinkHealth[status.state] ?? 'unknown')}>
      {isFailing ? <Trans>connecting again</Trans> : <StateName state={status.state} />}
    </StateBadge>
  );
}

export function PullStateBadge({ status }: { status: Schemas['PullSourceStatus'] }) {
  if (status.state === 'disabled' || status.state === 'invalid') {
    return (
      <StateBadge health={status.state === 'invalid' ? 'critical' : 'unknown'}>
        <StateName state={status.state} />
      </StateBadge>
    );
  }
  return status.is_ok ? (
    <StateBadge health={status.runs > 0 ? 'good' : 'unknown'}>
      {status.runs > 0 ? <Trans>running</Trans> : <Trans>waiting</Trans>}
    </StateBadge>
  ) : (
    <StateBadge health="critical">
      <Trans>failing</Trans>
    </StateBadge>
  );
}

function StateName({ state }: { state: string }) {
  switch (state) {
    case 'running':
      return <Trans>running</Trans>;
    case 'failing':
      return <Trans>failing</Trans>;
    case 'starting':
      return <Trans>starting</Trans>;
    case 'disabled':
      return <Trans>disabled</Trans>;
    case 'no_connector':
      return <Trans>no connector</Trans>;
    case 'invalid':
      return <Trans>invalid</Trans>;
    default:
      return <>{state}</>;
  }
}
