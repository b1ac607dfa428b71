import { Stack } from '@mantine/core';
import { Trans } from '@lingui/react/macro';
import type { ReactNode } from 'react';
import type { Schemas } from '../../api/client';
import { formatBytes, formatDuration, formatNumber } from '../../format';
import { StateBadge } from '../../ui/state-badge';
import { CopiesPanel } from './copies-panel';

type TelemetryCopy = Schemas['ClusterTelemetryCopy'];
type KeptTelemetry = Schemas['ClusterKeptTelemetry'];

/** The copy of the telemetry of this node at another one, and the copies that it keeps for others. */
export function TelemetryCopies({ copy }: { copy: TelemetryCopy }) {
  return (
    <CopiesPanel
      title={<Trans>Copies of telemetry</Trans>}
      facts={[
        [<Trans context="noun">Copy</Trans>, <CopyState copy={copy} />],
        [<Trans>Waiting to be sent</Trans>, formatBytes(copy.queued_bytes)],
        [<Trans>Age of the first row that waits</Trans>, formatDuration(copy.lag_ms / 1000)],
        [<Trans>Rows sent since the start</Trans>, formatNumber(copy.sent_rows)],
      ]}
      hint={copyHint(copy)}
      lastError={copy.state === 'complete' ? null : copy.last_error}
      keptTitle={<Trans>Telemetry kept for other nodes</Trans>}
      kept={copy.copies.map((kept) => [kept.node, <KeptCopy copy={kept} />])}
      nothingKept={<Trans>No other node copies its telemetry to this one.</Trans>}
    />
  );
}

function CopyState({ copy: { state, node } }: { copy: TelemetryCopy }) {
  const other = node ?? '–';
  switch (state) {
    case 'complete':
      return (
        <StateBadge health="good">
          <Trans>complete at {other}</Trans>
        </StateBadge>
      );
    case 'completing':
      return (
        <StateBadge health="warning">
          <Trans>copying to {other}</Trans>
        </StateBadge>
      );
    case 'interrupted':
      return (
        <StateBadge health="warning">
          <Trans>{other} cannot be reached</Trans>
        </StateBadge>
      );
    case 'no_standby':
      return (
        <StateBadge health="warning">
          <Trans>none</Trans>
        </StateBadge>
      );
    case 'not_wanted':
      return (
        <StateBadge health="unknown">
          <Trans>none</Trans>
        </StateBadge>
      );
  }
}

/** What the state of the copy means for readers of telemetry. */
function copyHint({ state }: TelemetryCopy): ReactNode {
  switch (state) {
    case 'complete':
      return null;
    case 'completing':
      return <Trans>Until the copy is complete, telemetry is missing in answers if this node fails.</Trans>;
    case 'interrupted':
      return <Trans>What is stored meanwhile is copied later. After 10 minutes, another node gets a new copy.</Trans>;
    case 'no_standby':
      return <Trans>There is no other node that could keep a copy.</Trans>;
    case 'not_wanted':
      return <Trans>Telemetry is copied for products whose storage is replicated.</Trans>;
  }
}

/** The copy of the telemetry of another node. */
function KeptCopy({ copy: { is_complete, is_orphan, bytes } }: { copy: KeptTelemetry }) {
  const size = formatBytes(bytes);
  return (
    <Stack gap={0}>
      <KeptCopyState isComplete={is_complete} isOrphan={is_orphan} />
      <span className="dimmed">
        <Trans>{size} on disk</Trans>
      </span>
    </Stack>
  );
}

function KeptCopyState({ isComplete, isOrphan }: { isComplete: boolean; isOrphan: boolean }) {
  if (isOrphan) {
    return (
      <StateBadge health="unknown">
        <Trans>of time series that the node has lost</Trans>
      </StateBadge>
    );
  }
  return isComplete ? (
    <StateBadge health="good">
      <Trans>has all telemetry</Trans>
    </StateBadge>
  ) : (
    <StateBadge health="warning">
      <Trans>lacks telemetry</Trans>
    </StateBadge>
  );
}
