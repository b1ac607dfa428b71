import { Button, JsonInput, Modal, SegmentedControl, Stack, Text, TextInput } from '@mantine/core';
import { Trans, useLingui } from '@lingui/react/macro';
import { IconPlus } from '@tabler/icons-react';
import { useState, type FormEvent } from 'react';
import { useChange, useRead, type Schemas } from '../../api/client';
import { objectPath, send } from '../../api/objects';
import { Confirm } from '../../ui/confirm';
import { DataTable, type Column } from '../../ui/data-table';
import { ctlFields, quoted, ShowCall } from '../../ui/show-call';
import { EmptyState } from '../../ui/states';
import { Ago } from '../../ui/time';
import { useUrlState } from '../../ui/url-state';

type Attribute = Schemas['DeviceAttribute'];

const refreshMs = 5_000;

/** Attributes of a device: its own, and those that operators set. */
export function DeviceAttributes({ device, mayChange }: { device: string; mayChange: boolean }) {
  const { t } = useLingui();
  const [scope, setScope] = useUrlState('scope', 'client');
  const [edited, setEdited] = useState<Attribute | 'new'>();
  const path = `${objectPath('/api/v1/devices', device)}/attributes/${scope}`;
  const read = useRead(
    ['devices', 'attributes', device, scope, 'list'],
    (signal) => send<{ data: Attribute[] }>('GET', path, { signal }),
    { every: refreshMs },
  );
  const isOurs = scope !== 'client' && mayChange;
  const columns: Column<Attribute>[] = [
    {
      id: 'key',
      header: t`Key`,
      sort: (row) => row.key,
      cell: (row) =>
        isOurs ? (
          <button type="button" className="link-button mono" onClick={() => setEdited(row)}>
            {row.key}
          </button>
        ) : (
          <span className="mono">{row.key}</span>
        ),
    },
    {
      id: 'value',
      header: t`Value`,
      cell: (row) => <span className="mono">{JSON.stringify(row.value)}</span>,
    },
    {
      id: 'updated',
      header: t`Changed`,
      sort: (row) => row.updated_at_ms,
      cell: (row) => <Ago ms={row.updated_at_ms} />,
    },
  ];
  const add = isOurs && (
    <Button leftSection={<IconPlus size={14} />} onClick={() => setEdited('new')}>
      <Trans>New attribute</Trans>
    </Button>
  );
  return (
    <>
      <DataTable
        name="attributes"
        label={t`Attributes`}
        columns={columns}
        rows={read.data?.data}
        rowKey={(row) => row.key}
        error={read.error}
        retry={() => void read.refetch()}
        toolbar={
          <>
            <SegmentedControl
              size="xs"
              aria-label={t`Scope`}
              value={scope}
              onChange={setScope}
              data={[
                { value: 'client', label: t`Of the device` },
                { value: 'shared', label: t`Shared` },
                { value: 'server', label: t`Of the server` },
              ]}
            />
            <div className="row wrap table-actions">
              <ShowCall method="GET" path={path} ctl={`devices attributes ${quoted(device)} ${scope}`} />
              {add}
            </div>
          </>
        }
        empty={
          <EmptyState title={<Trans>No attributes yet</Trans>} actions={add}>
            {scope === 'client' ? (
              <Trans>The device reports these itself, such as its firmware version.</Trans>
            ) : scope === 'shared' ? (
              <Trans>Operators set these, and the device is told about changes.</Trans>
            ) : (
              <Trans>Operators set these; the device does not see them.</Trans>
            )}
          </EmptyState>
        }
      />
      {edited && (
        <EditAttribute
          device={device}
          scope={scope}
          path={path}
          attribute={edited === 'new' ? undefined : edited}
          onClose={() => setEdited(undefined)}
        />
      )}
    </>
  );
}

function EditAttribute({
  device,
  scope,
  path,
  attribute,
  onClose,
}: {
  device: string;
  scope: string;
  path: string;
  attribute?: Attribute;
  onClose: () => void;
}) {
  const { t } = useLingui();
  const [key, setKey] = useState(attribute?.key ?? '');
  const [text, setText] = useState(attribute ? JSON.stringify(attribute.value, null, 2) : '');
  // What is not JSON is a text.
  const value = (() => {
    try {
      return JSON.parse(text) as unknown;
    } catch {
      return text;
    }
  })();
  const put = (body: object) => send('PUT', path, { body });
  const save = useChange(put, [['devices', 'attributes', device]]);
  const removal = useChange(put, [['devices', 'attributes', device]]);
  const [isRemoving, setRemoving] = useState(false);
  const body = { [key]: value };
  const submit = (event: FormEvent) => {
    event.preventDefault();
    save.mutate(body, { onSuccess: onClose });
  };
  return (
    <Modal opened onClose={onClose} title={attribute ? attribute.key : <Trans>New attribute</Trans>}>
      <form onSubmit={submit}>
        <Stack gap="sm">
          {!attribute && (
            <TextInput
              label={t`Key`}
              required
              data-autofocus
              classNames={{ input: 'mono' }}
              value={key}
              onChange={(event) => setKey(event.currentTarget.value)}
            />
          )}
          <JsonInput
            label={t`Value`}
            description={t`JSON, or a text.`}
            autosize
            minRows={2}
            maxRows={14}
            classNames={{ input: 'mono' }}
            value={text}
            onChange={setText}
          />
          {save.error && (
            <Text size="sm" c="var(--tg-critical)" role="alert">
              {save.error.message}
            </Text>
          )}
          <div className="row wrap" style={{ justifyContent: 'space-between' }}>
            <ShowCall
              method="PUT"
              path={path}
              body={body}
              ctl={`devices attributes ${quoted(device)} ${scope} ${ctlFields(body)}`}
            />
            <div className="row">
              {attribute && (
                <Button variant="default" onClick={() => setRemoving(true)}>
                  <Trans>Remove</Trans>
                </Button>
              )}
              <Button type="submit" loading={save.isPending} disabled={key === '' || text === ''}>
                <Trans>Save</Trans>
              </Button>
            </div>
          </div>
        </Stack>
      </form>
      {isRemoving && (
        <Confirm
          title={<Trans>Remove the attribute {key}?</Trans>}
          action={<Trans>Remove</Trans>}
          call={{ method: 'PUT', path, body: { [key]: null } }}
          isPending={removal.isPending}
          error={removal.error}
          onClose={() => setRemoving(false)}
          onConfirm={() => removal.mutate({ [key]: null }, { onSuccess: onClose })}
        >
          <Text size="sm">
            <Trans>This deletes the attribute with its value.</Trans>
          </Text>
        </Confirm>
      )}
    </Modal>
  );
}
