import { Button, Drawer, Stack, Text } from '@mantine/core';
import { Trans, useLingui } from '@lingui/react/macro';
import { IconPlus } from '@tabler/icons-react';
import { useState, type FormEvent } from 'react';
import { Link, useLocation } from 'wouter';
import { useChange } from '../../api/client';
import { objectPath, send, useWholeList, type Fields } from '../../api/objects';
import { useSchema } from '../../api/schemas';
import { mayInNamespace, useCaller } from '../../api/session';
import { formatNumber } from '../../format';
import { DataTable, type Column } from '../../ui/data-table';
import { formProblems, GeneratedForm, type Control } from '../../ui/schema-form';
import { ObjectSelect } from '../../ui/object-select';
import { ctlFields, ShowCall } from '../../ui/show-call';
import { EmptyState, Loading } from '../../ui/states';
import { Ago } from '../../ui/time';
import { useUrlState } from '../../ui/url-state';
import { WavesInput } from './waves-input';
import { CampaignProgress, campaignsPath, CampaignStateBadge, devicesOf, type Campaign } from './campaign';

const refreshMs = 3_000;

const href = ({ id }: Campaign) => `/firmware/campaigns/${id}`;

/** Installations of packages, wave by wave. */
export function Campaigns() {
  const { t } = useLingui();
  const caller = useCaller();
  const [isNew, setNew] = useUrlState('new');
  const list = useWholeList<Campaign>(campaignsPath, { every: refreshMs });
  const mayChange = mayInNamespace(caller, 'operator');
  const columns: Column<Campaign>[] = [
    {
      id: 'package',
      header: t`Package`,
      sort: (row) => row.package,
      cell: (row) => (
        <Link href={href(row)} className="link">
          {row.package}
        </Link>
      ),
    },
    { id: 'description', header: t`Description`, cell: (row) => row.description || '–' },
    { id: 'state', header: t`State`, sort: (row) => row.status, cell: (row) => <CampaignStateBadge {...row} /> },
    { id: 'progress', header: t`Progress`, width: 180, cell: (row) => <CampaignProgress campaign={row} /> },
    {
      id: 'succeeded',
      header: t`Succeeded`,
      align: 'right',
      sort: (row) => row.counts.succeeded,
      cell: (row) => formatNumber(row.counts.succeeded),
    },
    {
      id: 'failed',
      header: t`Failed`,
      align: 'right',
      sort: (row) => row.counts.failed,
      cell: (row) => formatNumber(row.counts.failed),
    },
    {
      id: 'devices',
      header: t`Devices`,
      align: 'right',
      sort: devicesOf,
      cell: (row) => formatNumber(devicesOf(row)),
    },
    { id: 'begun', header: t`Begun`, sort: (row) => row.created_at_ms, cell: (row) => <Ago ms={row.created_at_ms} /> },
    { id: 'id', header: t`Number`, align: 'right', cell: (row) => row.id, isHidden: true },
    { id: 'namespace', header: t`Namespace`, cell: (row) => row.namespace, isHidden: true },
    ...(list.data?.some((row) => row.node)
      ? [{ id: 'node', header: t`Node`, sort: (row: Campaign) => row.node ?? '', cell: (row: Campaign) => row.node }]
      : []),
  ];
  const add = mayChange && (
    <Button leftSection={<IconPlus size={14} />} onClick={() => setNew('1')}>
      <Trans>New campaign</Trans>
    </Button>
  );
  return (
    <>
      <DataTable
        name="campaigns"
        label={t`Campaigns`}
        columns={columns}
        rows={list.data}
        rowKey={(row) => String(row.id)}
        rowHref={href}
        error={list.error}
        retry={() => void list.refetch()}
        toolbar={<div className="row wrap table-actions">{add}</div>}
        empty={
          <EmptyState title={<Trans>No campaigns yet</Trans>} actions={add}>
            <Trans>
              A campaign installs a package on devices wave by wave, and halts by itself when too many of them fail.
            </Trans>
          </EmptyState>
        }
      />
      {isNew !== '' && mayChange && <NewCampaign onClose={() => setNew('')} />}
    </>
  );
}

function NewCampaign({ onClose }: { onClose: () => void }) {
  const { t } = useLingui();
  const [, navigate] = useLocation();
  const scope = useSchema('CampaignDefinition');
  const [values, setValues] = useState<Fields>({ waves: [{ percent: 10, group: null }] });
  const [showAll, setShowAll] = useState(false);
  const create = useChange((body: Fields) => send<Campaign>('POST', campaignsPath, { body }), [[campaignsPath]]);
  const controls: Record<string, Control> = {
    package: (props) => <ObjectSelect kind="firmware" {...props} />,
    group: (props) => <ObjectSelect kind="device-groups" {...props} />,
    waves: (props) => <WavesInput {...props} />,
  };
  const submit = (event: FormEvent) => {
    event.preventDefault();
    setShowAll(true);
    if (!scope || formProblems(values, scope.root, scope).length > 0) return;
    create.mutate(values, { onSuccess: (campaign) => navigate(href(campaign)) });
  };
  return (
    <Drawer opened onClose={onClose} position="right" size="lg" title={t`New campaign`}>
      {scope ? (
        <form onSubmit={submit} noValidate>
          <Stack gap="md">
            <GeneratedForm
              schema={scope.root}
              scope={scope}
              value={values}
              onChange={setValues}
              first={['package', 'description', 'group', 'devices', 'waves']}
              showAll={showAll}
              controls={controls}
            />
            {create.error && (
              <Text size="sm" c="var(--tg-critical)" role="alert">
                {create.error.message}
              </Text>
            )}
          </Stack>
          <div className="drawer-footer">
            <ShowCall method="POST" path={campaignsPath} body={values} ctl={`campaigns add ${ctlFields(values)}`} />
            <Button type="submit" loading={create.isPending}>
              <Trans>Begin</Trans>
            </Button>
          </div>
        </form>
      ) : (
        <Loading />
      )}
    </Drawer>
  );
}

export const campaignPath = (id: string) => objectPath(campaignsPath, id);
