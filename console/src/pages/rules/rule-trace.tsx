import { Button, Text } from '@mantine/core';
import { Trans, useLingui } from '@lingui/react/macro';
import { IconPlayerPause, IconPlayerPlay, IconTrash } from '@tabler/icons-react';
import { useEffect, useRef, useState } from 'react';
import { openStream } from '../../api/stream';
import { formatNumber } from '../../format';
import { CopyText } from '../../ui/copy';
import { ShowCall } from '../../ui/show-call';
import { StateBadge, type Health } from '../../ui/state-badge';
import { EmptyState } from '../../ui/states';
import { LiveTime } from '../../ui/time';

interface TraceRecord {
  at_ms: number;
  event?: string;
  client_id?: string;
  topic?: string | null;
  payload?: string | null;
  result: string;
  outputs?: unknown[];
  reason?: string;
  compared?: { expression: string; value: string }[];
  error?: string;
  payload_problem?: string;
  omitted?: number;
}

interface Shown extends TraceRecord {
  id: number;
}

/** Records that the page keeps. */
const maxRecords = 200;
/** Long enough to publish a message elsewhere and come back. */
const traceHiddenMs = 60_000;

/** What a running rule does with each event, as it happens. */
export function RuleTrace({ name, onSample }: { name: string; onSample: (topic: string, payload: string) => void }) {
  const { t } = useLingui();
  const [records, setRecords] = useState<Shown[]>([]);
  const [isPaused, setPaused] = useState(false);
  const [omitted, setOmitted] = useState(0);
  const count = useRef(0);
  useEffect(() => {
    if (isPaused) return;
    return openStream({
      path: `/api/v1/rules/${encodeURIComponent(name)}/trace`,
      hiddenMs: traceHiddenMs,
      onEvent: ({ type, data }) => {
        if (type === 'lost') setOmitted((previous) => previous + (data as { count: number }).count);
        if (type !== 'trace') return;
        const record = data as TraceRecord;
        count.current += 1;
        const id = count.current;
        if (record.omitted) setOmitted((previous) => previous + (record.omitted ?? 0));
        setRecords((previous) => [{ ...record, id }, ...previous.slice(0, maxRecords - 1)]);
      },
    });
  }, [isPaused, name]);
  return (
    <section className="panel">
      <div className="table-toolbar wrap">
        <Button
          variant="default"
          aria-pressed={isPaused}
          leftSection={isPaused ? <IconPlayerPlay size={14} /> : <IconPlayerPause size={14} />}
          onClick={() => setPaused(!isPaused)}
        >
          {isPaused ? <Trans>Continue</Trans> : <Trans>Pause</Trans>}
        </Button>
        <Button
          variant="subtle"
          color="gray"
          leftSection={<IconTrash size={14} />}
          disabled={records.length === 0}
          onClick={() => setRecords([])}
        >
          <Trans>Clear</Trans>
        </Button>
        <ShowCall command={`tidegate rule trace ${name}`} />
        {omitted > 0 && (
          <Text size="xs" c="dimmed">
            <Trans>{formatNumber(omitted)} events were too many to show</Trans>
          </Text>
        )}
      </div>
      {records.length === 0 ? (
        <EmptyState title={<Trans>Waiting for an event</Trans>}>
          <Trans>Each event that FROM selects appears here with its output, or the reason why there is none.</Trans>
        </EmptyState>
      ) : (
        <ol className="trace" aria-label={t`Events`}>
          {records.map((record) => (
            <TraceEntry key={record.id} record={record} onSample={onSample} />
          ))}
        </ol>
      )}
    </section>
  );
}

const health: Record<string, Health> = {
  passed: 'good',
  no_result: 'unknown',
  failed: 'critical',
  action_failed: 'critical',
};

function TraceEntry({ record, onSample }: { record: Shown; onSample: (topic: string, payload: string) => void }) {
  const [isOpen, setOpen] = useState(false);
  const { topic, payload } = record;
  const compared = record.compared?.map(({ expression, value }) => `${expression} = ${value}`).join(', ');
  return (
    <li className="trace-entry">
      <button type="button" className="live-head" aria-expanded={isOpen} onClick={() => setOpen(!isOpen)}>
        <LiveTime ms={record.at_ms} />
        <StateBadge health={health[record.result] ?? 'warning'}>
          <ResultName result={record.result} />
        </StateBadge>
        <span className="mono live-topic">{topic ?? record.event}</span>
        <span className="mono live-preview">
          {record.outputs ? record.outputs.map((each) => JSON.stringify(each)).join(' ') : (record.error ?? compared)}
        </span>
      </button>
      {isOpen && (
        <div className="live-detail">
          {record.reason && <span>{record.reason}</span>}
          {compared && <span className="mono">{compared}</span>}
          {record.error && <span className="state-critical">{record.error}</span>}
          {record.payload_problem && <span className="state-warning">{record.payload_problem}</span>}
          {payload && <CopyText text={payload} />}
          {record.outputs && <CopyText text={record.outputs.map((each) => JSON.stringify(each, null, 2)).join('\n')} />}
          {topic && payload && (
            <div>
              <Button variant="default" onClick={() => onSample(topic, payload)}>
                <Trans>Use as the sample of the test</Trans>
              </Button>
            </div>
          )}
        </div>
      )}
    </li>
  );
}

function ResultName({ result }: { result: string }) {
  if (result === 'passed') return <Trans>output</Trans>;
  if (result === 'no_result') return <Trans>no output</Trans>;
  if (result === 'failed') return <Trans>failed</Trans>;
  if (result === 'action_failed') return <Trans>action failed</Trans>;
  return <>{result.replaceAll('_', ' ')}</>;
}
