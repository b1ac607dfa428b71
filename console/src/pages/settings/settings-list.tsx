import { Badge, Button, Drawer, Select, Stack, Switch, Text, TextInput } from '@mantine/core';
import { notifications } from '@mantine/notifications';
import { Trans, useLingui } from '@lingui/react/macro';
import { IconArrowBackUp, IconSearch } from '@tabler/icons-react';
import { useState, type FormEvent, type ReactNode } from 'react';
import { Link, useSearchParams } from 'wouter';
import { useChange, useRead, type Schemas } from '../../api/client';
import { useDescriptions } from '../../api/descriptions';
import { ifMatch, objectPath, readVersioned, send, type Versioned } from '../../api/objects';
import { mayOnNode, useCaller } from '../../api/session';
import { useConditionalSave, type ReadValue } from '../../ui/conditional-save';
import { DataTable, type Column } from '../../ui/data-table';
import { Description, withCode } from '../../ui/description';
import { Facts } from '../../ui/page';
import { ShowCall } from '../../ui/show-call';
import { EmptyState, ErrorState, Loading } from '../../ui/states';
import { useUrlState } from '../../ui/url-state';
import { VersionConflict } from '../../ui/version-conflict';
import { operandProblem, parseSetting, settingText } from './setting-value';

export type SettingInfo = Schemas['SettingInfo'];

export const settingsPath = '/api/v1/settings';

export function useSettings() {
  return useRead([settingsPath], (signal) => send<{ data: SettingInfo[] }>('GET', settingsPath, { signal }));
}

/** All settings with their values and origins; some can be changed while the node runs. */
export function SettingsList() {
  const { t } = useLingui();
  const translate = useDescriptions();
  const [parameters] = useSearchParams();
  const [search, setSearch] = useUrlState('q');
  const [section, setSection] = useUrlState('section');
  const [origin, setOrigin] = useUrlState('origin');
  const [changeable, setChangeable] = useUrlState('changeable');
  const [opened, setOpened] = useUrlState('setting');
  const settings = useSettings();
  const all = settings.data?.data;
  const sections = [...new Set(all?.map(({ key }) => key.split('.')[0] ?? ''))].sort();
  const wanted = search.trim().toLowerCase();
  const rows = all?.filter(
    (setting) =>
      (wanted === '' || `${setting.key} ${setting.help} ${translate(setting.help)}`.toLowerCase().includes(wanted)) &&
      (section === '' || setting.key.startsWith(`${section}.`)) &&
      (origin === '' || (origin === 'default') === (setting.origin === 'default')) &&
      (changeable === '' || setting.changeable),
  );
  const href = ({ key }: SettingInfo) => {
    const next = new URLSearchParams(parameters);
    next.set('setting', key);
    return `/settings?${next.toString()}`;
  };
  const columns: Column<SettingInfo>[] = [
    {
      id: 'key',
      header: t`Setting`,
      sort: (row) => row.key,
      cell: (row) => (
        <Link href={href(row)} className="link mono">
          {row.key}
        </Link>
      ),
    },
    {
      id: 'value',
      header: t`Value`,
      cell: (row) => <span className="mono">{settingText(row.value) || '–'}</span>,
    },
    {
      id: 'origin',
      header: t`Origin`,
      sort: (row) => row.origin,
      cell: (row) =>
        row.origin === 'default' ? (
          <span className="dimmed">
            <Trans>default</Trans>
          </span>
        ) : row.origin === 'api' ? (
          <Badge variant="light" tt="none">
            <Trans>changed here</Trans>
          </Badge>
        ) : (
          row.origin
        ),
    },
    {
      id: 'changeable',
      header: t`Change`,
      sort: (row) => (row.changeable ? 0 : 1),
      cell: (row) => (row.changeable ? <Trans>at run time</Trans> : <Trans>with a restart</Trans>),
    },
    { id: 'help', header: t`Meaning`, cell: (row) => <Description text={row.help} /> },
  ];
  const current = all?.find(({ key }) => key === opened);
  return (
    <>
      <DataTable
        name="settings"
        label={t`Settings`}
        columns={columns}
        rows={rows}
        rowKey={(row) => row.key}
        rowHref={href}
        error={settings.error}
        retry={() => void settings.refetch()}
        toolbar={
          <>
            <TextInput
              aria-label={t`Part of a name or description`}
              placeholder={t`Part of a name or description`}
              leftSection={<IconSearch size={14} />}
              w={240}
              value={search}
              onChange={(event) => setSearch(event.currentTarget.value)}
            />
            <Select
              aria-label={t`Section`}
              placeholder={t`Any section`}
              clearable
              w={150}
              value={section || null}
              onChange={(value) => setSection(value ?? '')}
              data={sections}
            />
            <Select
              aria-label={t`Origin`}
              placeholder={t`Any origin`}
              clearable
              w={170}
              value={origin || null}
              onChange={(value) => setOrigin(value ?? '')}
              data={[
                { value: 'set', label: t`not the default` },
                { value: 'default', label: t`default` },
              ]}
            />
            <Switch
              label={t`Only changeable ones`}
              checked={changeable !== ''}
              onChange={(event) => setChangeable(event.currentTarget.checked ? '1' : '')}
            />
          </>
        }
        empty={
          <EmptyState title={<Trans>Nothing matches</Trans>}>
            <Trans>Change the search or the filters.</Trans>
          </EmptyState>
        }
      />
      {current && <SettingDrawer key={current.key} name={current.key} onClose={() => setOpened('')} />}
    </>
  );
}

function SettingDrawer({ name, onClose }: { name: string; onClose: () => void }) {
  const [opened] = useState(() => Date.now());
  const path = objectPath(settingsPath, name);
  const read = useRead([settingsPath, 'one', name], (signal) => readVersioned<SettingInfo>(path, signal));
  const isFresh = read.dataUpdatedAt >= opened - maxAgeMs;
  return (
    <Drawer opened onClose={onClose} position="right" size="md" title={<span className="mono">{name}</span>}>
      {read.error && !read.data ? (
        <ErrorState error={read.error} retry={() => void read.refetch()} />
      ) : read.data && isFresh ? (
        <SettingForm opened={read.data} onClose={onClose} />
      ) : (
        <Loading />
      )}
    </Drawer>
  );
}

/** Of a setting that was read before its drawer was opened. */
const maxAgeMs = 2_000;

/** Shows a setting as it was when it was opened, and changes it. */
function SettingForm({ opened: newest, onClose }: { opened: Versioned<SettingInfo>; onClose: () => void }) {
  const { t } = useLingui();
  const translate = useDescriptions();
  const [opened] = useState(newest);
  const setting = opened.value;
  const caller = useCaller();
  const [text, setText] = useState(settingText(setting.value));
  const path = objectPath(settingsPath, setting.key);
  const value = parseSetting(text, setting.value, setting.expected);
  const affected = [[settingsPath], ['settings']];
  const change = useChange(
    ({ over, next }: { over: Versioned<SettingInfo>; next: unknown }) =>
      send<SettingInfo>('PUT', path, { body: { value: next }, headers: ifMatch(over) }),
    affected,
  );
  const stored = (version: Versioned<SettingInfo>): ReadValue<unknown> => ({
    value: version.value.value,
    save: (next) => change.mutateAsync({ over: version, next }),
  });
  const edit = useConditionalSave(
    stored(opened),
    async () => stored(await readVersioned<SettingInfo>(path)),
    () => {
      notifications.show({ message: t`${setting.key} was changed.` });
      onClose();
    },
  );
  const revert = useChange(() => send<SettingInfo>('DELETE', path), affected);
  const mayChange = setting.changeable && mayOnNode(caller, 'admin');
  const problem = operandProblem(text, setting.expected);
  const isBoolean = typeof setting.value === 'boolean';
  const submit = (event: FormEvent) => {
    event.preventDefault();
    void edit.save(() => value);
  };
  const rejected = edit.isConflict ? undefined : edit.error?.message;
  return (
    <form onSubmit={submit}>
      <Stack gap="md">
        <Text size="sm">{withCode(translate(setting.help))}</Text>
        <Facts
          rows={[
            [<Trans>Value</Trans>, <span className="mono">{settingText(setting.value) || '–'}</span>],
            [
              <Trans>Origin</Trans>,
              setting.configured ? <Trans>changed over the API; it survives restarts</Trans> : setting.origin,
            ],
            ...(setting.configured
              ? [
                  [
                    <Trans>Configured value</Trans>,
                    <>
                      <span className="mono">{settingText(setting.configured.value) || '–'}</span>{' '}
                      <span className="dimmed">({setting.configured.origin})</span>
                    </>,
                  ] as [ReactNode, ReactNode],
                ]
              : []),
            [<Trans>Expected</Trans>, translate(setting.expected)],
            [
              <Trans>Change</Trans>,
              setting.changeable ? (
                <Trans>at run time</Trans>
              ) : (
                <Trans>in the configuration file, with a restart of the node</Trans>
              ),
            ],
          ]}
        />
        {mayChange &&
          (isBoolean ? (
            <Switch
              label={t`New value`}
              checked={text === 'true'}
              onChange={(event) => setText(String(event.currentTarget.checked))}
            />
          ) : (
            <TextInput
              label={t`New value`}
              classNames={{ input: 'mono' }}
              data-autofocus
              value={text}
              error={problem ?? rejected}
              onChange={(event) => setText(event.currentTarget.value)}
            />
          ))}
        {edit.isConflict && (
          <VersionConflict
            {...edit.conflict(
              () => value,
              (theirs) => setText(settingText(theirs)),
            )}
          />
        )}
        {((isBoolean && rejected) || revert.error) && (
          <Text size="sm" c="var(--tg-critical)" role="alert">
            {revert.error?.message ?? rejected}
          </Text>
        )}
        {mayChange && (
          <Text size="xs" c="dimmed">
            <Trans>A change applies at once and also after a restart.</Trans>
          </Text>
        )}
      </Stack>
      <div className="drawer-footer">
        <ShowCall
          {...(mayChange ? { method: 'PUT' as const, body: { value } } : { method: 'GET' as const })}
          path={path}
          ctl={mayChange ? `settings set ${setting.key} ${settingText(value)}` : `settings show ${setting.key}`}
        />
        {mayChange && setting.configured && (
          <Button
            variant="default"
            leftSection={<IconArrowBackUp size={14} />}
            loading={revert.isPending}
            onClick={() =>
              revert.mutate(undefined, {
                onSuccess: () => {
                  notifications.show({ message: t`${setting.key} has its configured value again.` });
                  onClose();
                },
              })
            }
          >
            <Trans>Revert</Trans>
          </Button>
        )}
        {mayChange && (
          <Button
            type="submit"
            loading={edit.isPending}
            disabled={problem !== undefined || text === settingText(edit.value)}
          >
            <Trans>Change</Trans>
          </Button>
        )}
      </div>
    </form>
  );
}
