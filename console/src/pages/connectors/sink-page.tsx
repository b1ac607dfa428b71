import { Alert, Button, Checkbox, Modal, Stack, Text } from '@mantine/core';
import { notifications } from '@mantine/notifications';
import { Plural, Trans, useLingui } from '@lingui/react/macro';
import { IconEdit, IconRefresh, IconTrash } from '@tabler/icons-react';
import { useEffect, useState } from 'react';
import { Link, useParams } from 'wouter';
import { choiceName } from '../../api/choice-names';
import { api, unwrap, useChange, usePages, useRead, type Schemas } from '../../api/client';
import { mayOnNode, useCaller } from '../../api/session';
import { formatBytes, formatDuration, formatNumber } from '../../format';
import { Chart } from '../../ui/chart';
import { Confirm } from '../../ui/confirm';
import { CopyText } from '../../ui/copy';
import { DataTable, pagesOf, type Column } from '../../ui/data-table';
import { Facts, Page, Panel } from '../../ui/page';
import { PageTabs } from '../../ui/page-tabs';
import { PendingPage } from '../../ui/pending-page';
import { quoted, ShowCall } from '../../ui/show-call';
import { EmptyState } from '../../ui/states';
import { Ago } from '../../ui/time';
import { DefinitionDrawer } from './definition-drawer';
import { useChannelDefinition } from './definitions';
import { SinkStateBadge } from './sink-state';
import './connectors.css';

type Status = Schemas['SinkStatus'];
type Letter = Schemas['DeadLetter'];

const refreshMs = 2_000;
/** Seconds of history that the page keeps. */
const windowS = 300;

export default function SinkPage() {
  const caller = useCaller();
  const params = useParams<{ name: string }>();
  const name = decodeURIComponent(params.name ?? '');
  const [isEditing, setEditing] = useState(false);
  const definition = useChannelDefinition('sinks');
  const status = useRead(
    ['sink-status', name],
    (signal) => unwrap(api.GET('/api/v1/sinks/{name}/status', { params: { path: { name } }, signal })),
    { every: refreshMs },
  );
  if (!status.data) {
    return (
      <PendingPage
        title={name}
        query={status}
        missing={
          <EmptyState
            title={<Trans>There is no sink with this name</Trans>}
            actions={
              <Button component={Link} href="/connectors" variant="default">
                <Trans>All sinks</Trans>
              </Button>
            }
          />
        }
      />
    );
  }
  const data = status.data;
  return (
    <Page
      title={name}
      aside={<SinkStateBadge status={data} />}
      description={
        <Trans>
          Sink of the connector {data.connector} ({data.type ? choiceName('type', data.type) : '–'})
        </Trans>
      }
      actions={
        <>
          <ShowCall
            method="GET"
            path={`/api/v1/sinks/${encodeURIComponent(name)}/status`}
            ctl={`sinks status ${name}`}
          />
          <Button variant="default" leftSection={<IconEdit size={14} />} onClick={() => setEditing(true)}>
            {mayOnNode(caller, 'operator') ? <Trans>Edit and test</Trans> : <Trans>Definition</Trans>}
          </Button>
        </>
      }
    >
      {(data.problem || (data.state === 'failing' && data.last_error)) && (
        <Alert color="red" variant="light" title={<Trans>The sink does not write</Trans>}>
          {data.problem ?? data.last_error}
          {data.failing_since_ms != null && (
            <div>
              <Trans>
                Since <Ago ms={data.failing_since_ms} />. Rows wait in the queue and are tried again.
              </Trans>
            </div>
          )}
        </Alert>
      )}
      <PageTabs
        tabs={[
          {
            id: 'state',
            label: <Trans>State</Trans>,
            content: <State status={data} readAtMs={status.dataUpdatedAt} />,
          },
          {
            id: 'dead-letters',
            label: (
              <>
                <Trans>Dead letters</Trans> ({formatNumber(data.metrics.dead_letters)})
              </>
            ),
            content: <DeadLetters name={name} total={data.metrics.dead_letters} />,
          },
        ]}
      />
      {isEditing && (
        <DefinitionDrawer
          definition={definition}
          name={name}
          mayChange={mayOnNode(caller, 'operator')}
          onClose={() => setEditing(false)}
          onSaved={() => void status.refetch()}
        />
      )}
    </Page>
  );
}

interface Sample {
  atMs: number;
  queued: number;
  sent: number;
}

function State({ status, readAtMs }: { status: Status; readAtMs: number }) {
  const { t } = useLingui();
  const { metrics } = status;
  const [samples, setSamples] = useState<Sample[]>([]);
  useEffect(() => {
    const next = { atMs: readAtMs, queued: metrics.queued, sent: metrics.sent };
    setSamples((previous) =>
      previous.at(-1)?.atMs === readAtMs
        ? previous
        : [...previous.filter(({ atMs }) => atMs > readAtMs - windowS * 1000), next],
    );
  }, [metrics.queued, metrics.sent, readAtMs]);
  const times = samples.map(({ atMs }) => atMs);
  const written = samples.map((sample, index) => {
    const before = samples[index - 1];
    if (!before) return null;
    return Math.max(0, sample.sent - before.sent) / ((sample.atMs - before.atMs) / 1000);
  });
  const meanMs = metrics.batches > 0 ? (metrics.latency_seconds / metrics.batches) * 1000 : null;
  return (
    <Stack gap="md">
      <div className="grid">
        <Panel title={<Trans>Rows written per second</Trans>}>
          <Chart
            label={t`Rows written per second`}
            times={times}
            spanMs={windowS * 1000}
            syncKey="sink"
            series={[{ label: t`written`, values: written }]}
          />
        </Panel>
        <Panel title={<Trans>Rows in the queue</Trans>}>
          <Chart
            label={t`Rows in the queue`}
            times={times}
            spanMs={windowS * 1000}
            syncKey="sink"
            series={[{ label: t`queued`, values: samples.map(({ queued }) => queued), colour: 3 }]}
          />
        </Panel>
      </div>
      <div className="grid">
        <Panel title={<Trans>Queue</Trans>}>
          <Facts
            rows={[
              [<Trans>Waiting rows</Trans>, formatNumber(metrics.queued)],
              [<Trans>Size</Trans>, formatBytes(metrics.queued_bytes)],
              [<Trans>Only in memory</Trans>, formatNumber(metrics.queued_in_memory)],
              [<Trans>Being written</Trans>, formatNumber(metrics.rows_in_flight)],
              [<Trans>Circuit</Trans>, <CircuitName circuit={status.circuit} />],
            ]}
          />
        </Panel>
        <Panel title={<Trans>Rows</Trans>}>
          <Facts
            rows={[
              [<Trans>Written</Trans>, formatNumber(metrics.sent)],
              [<Trans>Retried</Trans>, formatNumber(metrics.retried)],
              [<Trans>Became dead letters</Trans>, formatNumber(metrics.failed)],
              [<Trans>Dropped, queue full</Trans>, formatNumber(metrics.dropped_queue_full)],
              [<Trans>Dropped, too large</Trans>, formatNumber(metrics.dropped_too_large)],
              [<Trans>Batches</Trans>, formatNumber(metrics.batches)],
              [<Trans>Mean duration of a batch</Trans>, meanMs === null ? '–' : `${formatNumber(meanMs, 1)} ms`],
            ]}
          />
        </Panel>
        <Panel title={<Trans>Last attempts</Trans>}>
          <Facts
            rows={[
              [<Trans>Last success</Trans>, <Ago ms={status.last_success_at_ms} />],
              [<Trans>Last error</Trans>, <Ago ms={status.last_error_at_ms} />],
              [<Trans>Text</Trans>, status.last_error ?? '–'],
              [<Trans>Failures in a row</Trans>, formatNumber(status.failures)],
              [
                <Trans>Failing for</Trans>,
                status.failing_since_ms == null ? '–' : formatDuration((Date.now() - status.failing_since_ms) / 1000),
              ],
            ]}
          />
        </Panel>
      </div>
    </Stack>
  );
}

function CircuitName({ circuit }: { circuit: Status['circuit'] }) {
  if (circuit === 'closed') return <Trans>closed: writes</Trans>;
  if (circuit === 'open') return <Trans>open: waits before the next attempt</Trans>;
  return <Trans>half open: tries one write</Trans>;
}

function DeadLetters({ name, total }: { name: string; total: number }) {
  const { t } = useLingui();
  const caller = useCaller();
  const [chosen, setChosen] = useState<ReadonlySet<number>>(new Set());
  const [open, setOpen] = useState<Letter | null>(null);
  const [isDiscarding, setDiscarding] = useState(false);
  const path = { path: { name } };
  const list = usePages<Letter>(
    ['dead-letters', name],
    (after, signal) =>
      unwrap(
        api.GET('/api/v1/sinks/{name}/dead-letters', { params: { ...path, query: { after, limit: 500 } }, signal }),
      ),
    { every: 5_000 },
  );
  const keys = [
    ['dead-letters', name],
    ['sink-status', name],
  ];
  const ids = [...chosen];
  const body = ids.length > 0 ? { ids } : {};
  const count = ids.length > 0 ? ids.length : total;
  const replay = useChange(
    () => unwrap(api.POST('/api/v1/sinks/{name}/dead-letters/replay', { params: path, body })),
    keys,
  );
  const discard = useChange(
    () => unwrap(api.POST('/api/v1/sinks/{name}/dead-letters/discard', { params: path, body })),
    keys,
  );
  const mayChange = mayOnNode(caller, 'operator');
  const toggle = (id: number) => {
    const next = new Set(chosen);
    if (!next.delete(id)) next.add(id);
    setChosen(next);
  };
  const callPath = `/api/v1/sinks/${encodeURIComponent(name)}/dead-letters`;
  const columns: Column<Letter>[] = [
    {
      id: 'chosen',
      header: t`Selected`,
      width: 40,
      cell: (row) => (
        <Checkbox
          size="xs"
          aria-label={t`Choose the dead letter ${row.id}`}
          checked={chosen.has(row.id)}
          onChange={() => toggle(row.id)}
        />
      ),
    },
    { id: 'time', header: t`Time`, sort: (row) => row.at_ms, cell: (row) => <Ago ms={row.at_ms} /> },
    {
      id: 'error',
      header: t`Error`,
      sort: (row) => row.error,
      cell: (row) => <span title={row.error}>{row.error}</span>,
    },
    { id: 'attempts', header: t`Attempts`, align: 'right', cell: (row) => formatNumber(row.attempts) },
    {
      id: 'row',
      header: t`Row`,
      cell: (row) => (
        <button type="button" className="text-button mono" onClick={() => setOpen(row)}>
          {JSON.stringify(row.row)}
        </button>
      ),
    },
  ];
  return (
    <>
      <DataTable
        name="dead-letters"
        label={t`Dead letters`}
        columns={columns}
        rowKey={(row) => String(row.id)}
        {...pagesOf(list)}
        height="calc(100dvh - 320px)"
        toolbar={
          mayChange && (
            <>
              <Button
                leftSection={<IconRefresh size={14} />}
                disabled={total === 0}
                loading={replay.isPending}
                onClick={() =>
                  replay.mutate(undefined, {
                    onSuccess: (done) => {
                      setChosen(new Set());
                      notifications.show({ message: t`${formatNumber(done.count)} rows are queued again.` });
                    },
                    onError: (error) => notifications.show({ message: error.message, color: 'red' }),
                  })
                }
              >
                {ids.length > 0 ? (
                  <Plural value={ids.length} one="Replay # row" other="Replay # rows" />
                ) : (
                  <Trans>Replay all</Trans>
                )}
              </Button>
              <Button
                variant="default"
                leftSection={<IconTrash size={14} />}
                disabled={total === 0}
                onClick={() => setDiscarding(true)}
              >
                {ids.length > 0 ? (
                  <Plural value={ids.length} one="Delete # row" other="Delete # rows" />
                ) : (
                  <Trans>Delete all</Trans>
                )}
              </Button>
              <ShowCall
                method="POST"
                path={`${callPath}/replay`}
                body={body}
                ctl={`sinks dead-letters replay ${quoted(name)} ${ids.join(' ')}`.trim()}
              />
            </>
          )
        }
        empty={
          <EmptyState title={<Trans>No dead letters</Trans>}>
            <Trans>Rows that the system rejects, or that failed too often, are kept here with the reason.</Trans>
          </EmptyState>
        }
      />
      {open && (
        <Modal opened onClose={() => setOpen(null)} title={<Trans>Dead letter</Trans>} size="lg">
          <Stack gap="sm">
            <Text size="sm" c="var(--tg-critical)">
              {open.error}
            </Text>
            <CopyText text={JSON.stringify(open.row, null, 2)} />
          </Stack>
        </Modal>
      )}
      {isDiscarding && (
        <Confirm
          title={<Trans>Delete dead letters?</Trans>}
          action={<Trans>Delete</Trans>}
          call={{
            method: 'POST',
            path: `${callPath}/discard`,
            body,
            ctl: `sinks dead-letters discard ${quoted(name)} ${ids.join(' ')}`.trim(),
          }}
          isPending={discard.isPending}
          error={discard.error}
          onClose={() => setDiscarding(false)}
          onConfirm={() =>
            discard.mutate(undefined, {
              onSuccess: (done) => {
                setChosen(new Set());
                setDiscarding(false);
                notifications.show({ message: t`${formatNumber(done.count)} dead letters were deleted.` });
              },
            })
          }
        >
          <Text size="sm">
            <Plural
              value={count}
              one="This deletes # row that could not be written. It is not written any more."
              other="This deletes # rows that could not be written. They are not written any more."
            />
          </Text>
        </Confirm>
      )}
    </>
  );
}
