import {
  Button,
  Drawer,
  JsonInput,
  MultiSelect,
  SegmentedControl,
  Select,
  Stack,
  Text,
  TextInput,
} from '@mantine/core';
import { Trans, useLingui } from '@lingui/react/macro';
import { IconSend, IconX } from '@tabler/icons-react';
import { useState, type FormEvent } from 'react';
import { useChange, useRead, type Schemas } from '../../api/client';
import { objectPath, send, useList } from '../../api/objects';
import { formatTime } from '../../format';
import { DataTable, pagesOf, type Column } from '../../ui/data-table';
import { Facts, Panel } from '../../ui/page';
import { ctlFields, quoted, ShowCall } from '../../ui/show-call';
import { EmptyState } from '../../ui/states';
import { Ago } from '../../ui/time';
import { modelOf } from '../products/thing-model';
import { commandDuration, CommandOutcome, ControlPanel } from './control-panel';

type Command = Schemas['Command'];

const refreshMs = 2_000;
const open = ['pending', 'sent', 'acknowledged'];

/** Controls, a form for any command, and what was sent before. */
export function DeviceCommands({ device, mayChange }: { device: Schemas['Device']; mayChange: boolean }) {
  return (
    <div className="page">
      <ControlPanel device={device.id} mayChange={mayChange} />
      {mayChange && <SendCommand device={device} />}
      <History device={device.id} mayChange={mayChange} />
    </div>
  );
}

type Kind = 'call' | 'function' | 'read' | 'write';

function SendCommand({ device }: { device: Schemas['Device'] }) {
  const { t } = useLingui();
  const [kind, setKind] = useState<Kind>('call');
  const [method, setMethod] = useState('');
  const [keys, setKeys] = useState<string[]>([]);
  const [text, setText] = useState('{}');
  const product = useRead(['/api/v1/products', 'one', device.product], (signal) =>
    send<Schemas['Product']>('GET', objectPath('/api/v1/products', device.product), { signal }),
  );
  const model = modelOf(product.data?.model);
  const functions = model.functions ?? [];
  const chosen = functions.find(({ id }) => id === method);
  const properties = (model.properties ?? []).map(({ id }) => id);
  const parsed = (() => {
    try {
      return { value: JSON.parse(text) as unknown };
    } catch {
      return undefined;
    }
  })();
  const base = objectPath('/api/v1/devices', device.id);
  const name = quoted(device.id);
  const json = quoted(JSON.stringify(parsed?.value ?? {}));
  const fields = (parsed?.value ?? {}) as Record<string, unknown>;
  const call = {
    call: {
      path: `${base}/commands`,
      body: { method, params: parsed?.value },
      ctl: `commands send ${name} ${quoted(method || 'METHOD')} ${json}`,
    },
    function: {
      path: `${base}/functions/${encodeURIComponent(method)}`,
      body: { params: parsed?.value },
      ctl: `commands invoke ${name} ${quoted(method || 'FUNCTION')} ${ctlFields(fields)}`,
    },
    read: { path: `${base}/properties/read`, body: { keys }, ctl: `commands read ${name} ${keys.join(' ')}` },
    write: {
      path: `${base}/properties/write`,
      body: { values: parsed?.value },
      ctl: `commands write ${name} ${ctlFields(fields)}`,
    },
  }[kind];
  const run = useChange(
    () => send<Command>('POST', call.path, { body: call.body }),
    [['devices', 'commands', device.id]],
  );
  const needsText = kind !== 'read';
  const isReady =
    (kind === 'read' ? keys.length > 0 : parsed !== undefined) &&
    (kind === 'read' || kind === 'write' || method !== '');
  const submit = (event: FormEvent) => {
    event.preventDefault();
    if (isReady) run.mutate(undefined);
  };
  return (
    <Panel title={<Trans>Send a command</Trans>}>
      <form onSubmit={submit}>
        <Stack gap="sm" maw={640}>
          <SegmentedControl
            size="xs"
            aria-label={t`Kind of command`}
            value={kind}
            onChange={(next) => {
              setKind(next as Kind);
              run.reset();
            }}
            data={[
              { value: 'call', label: t`Method` },
              ...(functions.length > 0 ? [{ value: 'function', label: t`Function` }] : []),
              { value: 'read', label: t`Read` },
              { value: 'write', label: t`Write` },
            ]}
          />
          {kind === 'call' && (
            <TextInput
              label={t`Method`}
              required
              maxLength={255}
              classNames={{ input: 'mono' }}
              value={method}
              onChange={(event) => setMethod(event.currentTarget.value)}
            />
          )}
          {kind === 'function' && (
            <Select
              label={t`Function`}
              searchable
              data={functions.map(({ id, name: label }) => ({ value: id, label: label ? `${label} (${id})` : id }))}
              value={chosen ? method : null}
              onChange={(id) => {
                setMethod(id ?? '');
                const inputs = functions.find((each) => each.id === id)?.inputs ?? [];
                setText(JSON.stringify(Object.fromEntries(inputs.map((input) => [input.id, null])), null, 2));
              }}
            />
          )}
          {kind === 'read' && (
            <MultiSelect
              label={t`Properties`}
              searchable
              data={properties}
              nothingFoundMessage={t`The thing model has no properties`}
              value={keys}
              onChange={setKeys}
            />
          )}
          {needsText && (
            <JsonInput
              label={kind === 'write' ? t`Values` : t`Parameters`}
              description={
                kind === 'function' && chosen?.inputs
                  ? chosen.inputs.map((input) => `${input.id}: ${input.valueType?.type ?? ''}`).join(', ')
                  : undefined
              }
              autosize
              minRows={2}
              maxRows={12}
              classNames={{ input: 'mono' }}
              value={text}
              error={parsed ? undefined : t`This is not valid JSON`}
              onChange={setText}
            />
          )}
          {run.error && (
            <Text size="sm" c="var(--tg-critical)" role="alert">
              {run.error.message}
            </Text>
          )}
          {run.data && (
            <div role="status">
              <CommandOutcome command={run.data} />
              {run.data.result != null && <pre className="json">{JSON.stringify(run.data.result, null, 2)}</pre>}
            </div>
          )}
          <div className="row wrap" style={{ justifyContent: 'space-between' }}>
            <ShowCall method="POST" {...call} />
            <Button type="submit" leftSection={<IconSend size={14} />} loading={run.isPending} disabled={!isReady}>
              <Trans>Send</Trans>
            </Button>
          </div>
        </Stack>
      </form>
    </Panel>
  );
}

function History({ device, mayChange }: { device: string; mayChange: boolean }) {
  const { t } = useLingui();
  const path = `${objectPath('/api/v1/devices', device)}/commands`;
  const list = useList<Command>(path, {}, { every: refreshMs, pageSize: 100 });
  const [opened, setOpened] = useState<Command>();
  const cancel = useChange((id: number) => send('POST', `/api/v1/commands/${id}/cancel`), [[path]]);
  const columns: Column<Command>[] = [
    {
      id: 'method',
      header: t`Command`,
      sort: (row) => row.method,
      cell: (row) => (
        <button type="button" className="link-button mono" onClick={() => setOpened(row)}>
          {row.method}
        </button>
      ),
    },
    { id: 'state', header: t`Result`, sort: (row) => row.state, cell: (row) => <CommandOutcome command={row} /> },
    {
      id: 'params',
      header: t`Parameters`,
      cell: (row) => <span className="mono">{row.params == null ? '–' : JSON.stringify(row.params)}</span>,
    },
    {
      id: 'created',
      header: t`Requested`,
      sort: (row) => row.created_at_ms,
      cell: (row) => <Ago ms={row.created_at_ms} />,
    },
    { id: 'by', header: t`By`, sort: (row) => row.created_by, cell: (row) => row.created_by },
    { id: 'took', header: t`Took`, align: 'right', cell: commandDuration },
    ...(mayChange
      ? [
          {
            id: 'action',
            header: t`Action`,
            cell: (row: Command) =>
              open.includes(row.state) ? (
                <Button
                  size="compact-xs"
                  variant="default"
                  leftSection={<IconX size={12} />}
                  loading={cancel.isPending && cancel.variables === row.id}
                  onClick={() => cancel.mutate(row.id)}
                >
                  <Trans>Cancel</Trans>
                </Button>
              ) : (
                <span className="dimmed">–</span>
              ),
          },
        ]
      : []),
  ];
  return (
    <>
      <DataTable
        name="device-commands"
        label={t`Commands`}
        columns={columns}
        rowKey={(row) => String(row.id)}
        {...pagesOf(list)}
        height={420}
        empty={
          <EmptyState title={<Trans>No commands yet</Trans>}>
            <Trans>Commands to this device and their results appear here.</Trans>
          </EmptyState>
        }
      />
      {opened && (
        <Drawer opened onClose={() => setOpened(undefined)} position="right" size="md" title={opened.method}>
          <CommandDetails command={list.rows?.find(({ id }) => id === opened.id) ?? opened} />
        </Drawer>
      )}
    </>
  );
}

function CommandDetails({ command }: { command: Command }) {
  const time = (ms: number | null) => (ms == null ? '–' : formatTime(ms));
  return (
    <Stack gap="md">
      <CommandOutcome command={command} />
      <Facts
        rows={[
          [<Trans>Number</Trans>, String(command.id)],
          [<Trans>Requested</Trans>, time(command.created_at_ms)],
          [<Trans>By</Trans>, command.created_by],
          [<Trans>Sent</Trans>, time(command.sent_at_ms)],
          [<Trans>Received by the client</Trans>, time(command.acknowledged_at_ms)],
          [<Trans>Ended</Trans>, time(command.finished_at_ms)],
          [<Trans>Attempts</Trans>, command.attempts],
          [<Trans>Code</Trans>, command.code ?? '–'],
          [<Trans>Message</Trans>, command.message ?? '–'],
        ]}
      />
      <div>
        <Text size="sm" fw={600}>
          <Trans>Parameters</Trans>
        </Text>
        <pre className="json">{JSON.stringify(command.params, null, 2)}</pre>
      </div>
      <div>
        <Text size="sm" fw={600}>
          <Trans>Answer</Trans>
        </Text>
        <pre className="json">{JSON.stringify(command.result, null, 2)}</pre>
      </div>
      <ShowCall method="GET" path={`/api/v1/commands/${command.id}`} ctl={`commands show ${command.id}`} />
    </Stack>
  );
}
